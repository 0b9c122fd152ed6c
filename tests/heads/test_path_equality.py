"""Under `match` a head that steps along paths changes no token; and laws for its q."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama, prompt
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.head_equality import assert_equal_to_transformers
from tests.support.path_heads import KINDS, LAYOUTS
from tests.support.zoo import build

ZOO = ("llama", "gemma2", "qwen3_moe", "gpt2", "mistral")
FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 10}]


@cache
def plain(batch: int, sampled: bool) -> list[Tensor]:
    """What plain decoding emits."""
    decoder = Decoder(TransformersTarget(llama()), None, Match(), k=0)
    return decoder.generate(prompt(range(batch)), 12, seed=5, warp=SAMPLED if sampled else GREEDY).units


@pytest.mark.thinned
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", [pytest.param("hydra", marks=pytest.mark.slow), *(x for x in KINDS if x != "hydra")])
def test_equal_to_plain(name: str, sampled: bool, form: dict[str, Any], tmp_path: Path) -> None:
    """A ragged batch of three, and a row alone."""
    layout = LAYOUTS[name]
    drafter = layout.drafter(PathOptions(model=str(layout.save(tmp_path)), probe=False, **form))
    decoder = Decoder(TransformersTarget(llama()), drafter, Match(), k=4)
    for batch in (3, 1):
        ours = decoder.generate(prompt(range(batch)), 12, seed=5, warp=SAMPLED if sampled else GREEDY)
        assert all(torch.equal(a, b) for a, b in zip(ours.units, plain(batch, sampled), strict=True))
        assert batch == 1 or ours.report.accepted > 0, "nothing was accepted, so nothing was tested"


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("architecture", ZOO)
@pytest.mark.parametrize("name", KINDS)
def test_equal_to_transformers(
    name: str, architecture: str, form: dict[str, Any], prompts: Callable, tmp_path: Path
) -> None:
    model, layout = build(architecture), LAYOUTS[name]
    folder = layout.save(tmp_path, model.get_input_embeddings().weight.shape[-1], model.config.vocab_size)
    live = layout.drafter(PathOptions(model=str(folder), probe=False, **form))
    named = {"method": name.removesuffix("++"), "drafter": str(folder), **form}
    assert_equal_to_transformers(model, prompts, named, {"drafter": live})


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (Rejection, {"form": "chain"}),
        (Block, {"form": "chain"}),
        (RecursiveRejection, {"form": "branching", "branching": (2, 2)}),
    ],
)
def test_the_law_of_rules_that_use_q(
    name: str, rule: type, form: dict[str, Any], tmp_path: Path, law: Callable
) -> None:
    layout = LAYOUTS[name]
    drafter = layout.drafter(PathOptions(model=str(layout.save(tmp_path)), probe=False, **form))
    assert law(Decoder(TransformersTarget(llama()), drafter, rule(), k=2), least=1.05) > LEVEL
