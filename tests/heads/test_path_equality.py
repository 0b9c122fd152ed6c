"""Under `match` a head that steps along paths changes no token; and laws for its q."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL, joint_p_value
from mmspec.testing.tiny_models import llama, prompt
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.path_heads import KINDS, LAYOUTS
from tests.support.zoo import build

ZOO = ("llama", "gemma2", "qwen3_moe", "gpt2", "mistral")
FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 10}]


@cache
def plain(batch: int, sampled: bool) -> list[Tensor]:
    """What plain decoding emits."""
    decoder = Decoder(TransformersTarget(llama()), None, Match(), k=0)
    return decoder.generate(prompt(range(batch)), 12, seed=5, warp=SAMPLED if sampled else GREEDY).units


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
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("architecture", ZOO)
@pytest.mark.parametrize("name", KINDS)
def test_equal_to_transformers(
    name: str, architecture: str, form: dict[str, Any], prompts: Callable, tmp_path: Path
) -> None:
    """Through `enable`: a ragged batch, greedy, by folder; one row, sampled, with a live drafter."""
    model, layout = build(architecture), LAYOUTS[name]
    folder = layout.save(tmp_path, model.get_input_embeddings().weight.shape[-1], model.config.vocab_size)
    for batch, call in ((3, {"do_sample": False}), (1, {"do_sample": True, "top_k": 0, "temperature": 0.8})):
        call = {**call, "max_new_tokens": 16}
        run = stock(model, prompts(batch), 0, **call)
        live = layout.drafter(PathOptions(model=str(folder), probe=False, **form))
        method = name.removesuffix("++")
        how: dict[str, Any] = {"method": method, "drafter": str(folder), **form} if batch == 3 else {"drafter": live}
        with mmspec.enable(model, k=3, **how) as enabled:
            torch.manual_seed(0)
            ids = model.generate(**prompts(batch), **call)
            assert enabled.report is not None and enabled.report.drafted > 0
        assert_same(ids, run, torch.get_rng_state())


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
def test_the_law_of_rules_that_use_q(name: str, rule: type, form: dict[str, Any], tmp_path: Path) -> None:
    """The joint of three tokens over 20,000 rows, with a head's own distribution on the way."""
    count, known, layout = 20_000, torch.tensor([[1, 4, 2, 6, 3]]), LAYOUTS[name]
    drafter = layout.drafter(PathOptions(model=str(layout.save(tmp_path)), probe=False, **form))
    ours = Decoder(TransformersTarget(llama()), drafter, rule(), k=2)
    output = ours.generate(known.expand(count, -1), 3, seed=list(range(count)), warp=SAMPLED)
    drawn = torch.stack(output.units)
    assert output.report.acceptance_length > 1.05
    joint, texts = torch.ones(1), known
    for _ in range(3):
        with torch.no_grad():
            p = llama()(input_ids=texts, use_cache=False).logits[:, -1].softmax(-1)
        joint = (joint[:, None] * p).flatten()
        texts = torch.cat([texts.repeat_interleave(7, 0), torch.arange(7).repeat(len(texts))[:, None]], 1)
    assert joint_p_value(drawn, joint.reshape(7, 7, 7)) > LEVEL
