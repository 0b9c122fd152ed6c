"""Under `match` a head changes no token: whatever it drafts, the text is that of plain decoding; and laws for its q."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from tests.heads.conftest import GREEDY, HEADS, SAMPLED
from tests.support.eagle_layouts import LAYOUTS
from tests.support.head_equality import assert_equal_call
from tests.support.zoo import build

ZOO = {"llama": (0, 2, 4), "gemma2": (1, 2, 3), "qwen3_moe": (0, 1, 4), "gpt2": (0, 1, 2), "mistral": (2, 3, 4)}
"""Architectures of several families, and boundaries of their layers."""
FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 10}]


@pytest.mark.thinned(1)
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_equal_to_plain(
    name: str, sampled: bool, form: dict[str, Any], decoder: Callable, rows: dict[str, Tensor]
) -> None:
    """Batch 3 and batch 1."""
    warp = SAMPLED if sampled else GREEDY
    for batch in (rows, {key: value[:1] for key, value in rows.items()}):
        plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(batch, 40, seed=5, warp=warp)
        ours = decoder(name, Match(), **form).generate(batch, 40, seed=5, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
        assert ours.report.accepted > 0, "nothing was accepted, so nothing was tested"


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("architecture", ZOO)
def test_equal_to_transformers(
    architecture: str, form: dict[str, Any], batch: int, sampled: bool, prompts: Callable, tmp_path: Path
) -> None:
    """Through `enable`, greedy by folder, sampled with a live drafter; rows of several lengths."""
    folder = LAYOUTS["eagle-3"].save(tmp_path, changed={"eagle_aux_hidden_state_layer_ids": ZOO[architecture]})
    model = build(architecture)
    call: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": 1.0} if sampled else {"do_sample": False}
    live = Eagle(EagleOptions(model=str(folder), **form))
    how: dict[str, Any] = {"drafter": live} if sampled else {"method": "eagle", "drafter": str(folder), **form}
    assert_equal_call(model, prompts(batch), call, how)


@pytest.mark.parametrize("name", [pytest.param("eagle-3", marks=pytest.mark.slow), "pruned"])
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (Rejection, {"form": "chain"}),
        (Block, {"form": "chain"}),
        (RecursiveRejection, {"form": "branching", "branching": (2, 2)}),
        pytest.param(RecursiveRejection, {"form": "heap", "width": 2, "nodes": 4}, marks=pytest.mark.slow),
    ],
)
def test_the_law_of_rules_that_use_q(
    name: str, rule: type, form: dict[str, Any], decoder: Callable, law: Callable
) -> None:
    """A head's own distribution on the way, all ids or a part of them."""
    assert law(decoder(name, rule(), k=2, **form)) > LEVEL
