"""Models that read a picture: stock alive, and `mmspec.enable` the same, greedy and sampled, in chains and trees."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest
import torch

import mmspec
from mmspec.compare.equality import NEAR_TIE, assert_same, stock
from tests.support.zoo import noisy
from tests.support.zoo.vision import IMAGE, VISION

CALLS: dict[str, dict[str, Any]] = {
    "greedy": dict(do_sample=False, max_new_tokens=24),
    "sampled": dict(do_sample=True, top_k=0, temperature=0.8, max_new_tokens=24),
}
METHODS = {"chain": "draft-model", "tree": "draft-tree"}


@lru_cache(maxsize=2)
def pair(name: str) -> tuple[Any, Any]:
    """A model, and a drafter that is a little wrong."""
    model = VISION[name].model()
    return model, noisy(model, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_stock_decides_by_the_picture(name: str) -> None:
    model, inputs = pair(name)[0], VISION[name].inputs(3)
    lengths = inputs["attention_mask"].sum(1)
    assert len(set(lengths.tolist())) == 3 and ((inputs["input_ids"] == IMAGE).sum(1) > 0).all()
    run = stock(model, inputs, 0, **CALLS["greedy"])
    new = run.ids[:, inputs["input_ids"].shape[1] :]
    assert new.shape == (3, 24) and min(len(set(row)) for row in new.tolist()) >= 5
    best = torch.stack(run.scores, 1).topk(2).values
    assert float((best[..., 0] - best[..., 1]).min()) > 10 * NEAR_TIE
    inverted = {**inputs, "pixel_values": -inputs["pixel_values"]}
    other = stock(model, inverted, 0, **CALLS["greedy"]).ids[:, -24:]
    assert (new != other).any(1).all(), "the picture says nothing"


@pytest.mark.thinned(1)
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shape", [pytest.param("chain", marks=pytest.mark.slow), "tree"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (i % 2)) for i, name in enumerate(VISION)]
)
@pytest.mark.compiled
def test_equals_stock(name: str, shape: str, call: str, batch: int) -> None:
    model, drafter = pair(name)
    inputs = VISION[name].inputs(batch)
    run = stock(model, inputs, 0, **CALLS[call])
    with mmspec.enable(model, METHODS[shape], drafter=drafter, k=4) as enabled:
        torch.manual_seed(0)
        ids = model.generate(**inputs, **CALLS[call])
        state = torch.get_rng_state()
    assert_same(ids, run, state)
    assert enabled.report is not None and enabled.report.accepted > 0, "nothing was accepted, so nothing was tested"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * bool(i % 6)) for i, name in enumerate(VISION)]
)
def test_two_pictures_one_after_another(name: str) -> None:
    """What a model remembers of its last picture (Qwen: the shift of its positions) must not reach the next call."""
    model = pair(name)[0]
    first, second = VISION[name].inputs(3, seed=1), VISION[name].inputs(2, seed=2)
    runs = [stock(model, inputs, 0, **CALLS["greedy"]) for inputs in (first, second)]
    with mmspec.enable(model, "prompt-lookup"):
        for inputs, run in zip((first, second), runs, strict=True):
            assert_same(_greedy(model, inputs), run)
    assert_same(_greedy(model, first), runs[0])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", ["a prefix", "no kinds", "a text", "a text without kinds", "a prefix and a suffix"])
@pytest.mark.parametrize("name", ["paligemma", "paligemma2"])
def test_a_prompt_that_attends_both_ways(name: str, kind: str) -> None:
    """`token_type_ids` are zeros in a prompt that attends both ways, as PaliGemma's processor makes it; positions begin
    at 1. Without pictures, too, such a prompt is read by the model itself.
    """
    model, drafter = pair(name)
    inputs = VISION[name].inputs(3)
    zeros = torch.zeros_like(inputs["token_type_ids"])
    suffix = (torch.arange(zeros.shape[1]) > zeros.shape[1] - 4).int().expand_as(zeros)
    inputs["token_type_ids"] = suffix if "suffix" in kind else zeros
    if "text" in kind:
        inputs = {key: value[:, -9:] for key, value in inputs.items() if key != "pixel_values"}
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    if "no" in kind or "without" in kind:
        del inputs["token_type_ids"]
    run = stock(model, inputs, 0, **CALLS["sampled"])
    with mmspec.enable(model, "draft-tree", drafter=drafter, k=4) as enabled:
        torch.manual_seed(0)
        assert_same(model.generate(**inputs, **CALLS["sampled"]), run)
    assert enabled.report is not None and enabled.report.accepted > 0


def _greedy(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    torch.manual_seed(0)
    ids: torch.Tensor = model.generate(**inputs, **CALLS["greedy"])
    return ids
