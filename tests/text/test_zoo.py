"""The zoo itself: every small model is alive, decides, and is hurt when a part of it is forgotten."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mmspec.compare.equality import NEAR_TIE, stock
from tests.support.zoo import ARCHITECTURES, CONTEXT, MEANS, MISSING, REFUSED, SAME, SAYS, build, noisy, unaccounted

WINDOWS = ("sliding_window", "attention_chunk_size")
WINDOWED = [name for name, recipe in ARCHITECTURES.items() if any(recipe.config.get(size) for size in WINDOWS)]
FAMILIES = {recipe.family: name for name, recipe in reversed(ARCHITECTURES.items())}.values()
"""The first architecture of every family; the slow tier looks at all."""
WRITTEN_FOR = "5.23"


def whole_row(model: Any, ids: Tensor) -> Tensor:
    """Logits `[unit, vocab]` of a row by itself, without a cache, positions from 0."""
    takes = "position_ids" in inspect.signature(type(model).forward).parameters
    more = {"position_ids": torch.arange(len(ids))[None]} if takes else {}
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids[None], use_cache=False, **more).logits[0]
    return logits


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAMILIES else [pytest.mark.slow]) for n in ARCHITECTURES]
)
def test_stock_decides(name: str, prompts: Callable) -> None:
    """24 greedy tokens of a ragged batch: lively, different in every row, far from ties, within reach of a drafter."""
    model, inputs = build(name), prompts(3)
    alive = {key: w for key, w in model.named_parameters() if w.numel() > 1 and w.is_floating_point()}
    assert not [key for key, w in alive.items() if (w == w.flatten()[0]).all()], "a parameter is constant"
    run = stock(model, inputs, 0, do_sample=False, max_new_tokens=24)
    new, scores = run.ids[:, 14:], torch.stack(run.scores, 1)
    assert new.shape == (3, 24), "a row ended"
    assert len({tuple(row) for row in new.tolist()}) == 3, "two rows say the same"
    assert min(len(set(row)) for row in new.tolist()) >= 5, "a text stands still"
    best = scores.topk(2).values
    assert float((best[..., 0] - best[..., 1]).min()) > 10 * NEAR_TIE, "a near-tie"
    drafter, agreed, off = noisy(model, 0.05), [], 0.0
    for row in range(3):
        ids = run.ids[row][torch.cat([inputs["attention_mask"][row].bool(), torch.ones(24, dtype=torch.bool)])]
        off = max(off, float((whole_row(model, ids)[-25:-1, : scores.shape[-1]] - scores[row]).abs().max()))
        agreed.append((whole_row(drafter, ids)[-25:-1].argmax(-1) == new[row]).float().mean())
    padding_counts = off >= NEAR_TIE / 3
    assert padding_counts == ARCHITECTURES[name].alone, f"a row in its batch and alone differ by {off:.1e}"
    assert 0.4 < float(torch.stack(agreed).mean()) < 1, "the noisy copy is no drafter"


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWED)
def test_windows_matter(name: str) -> None:
    """The same weights without the window write other scores at the 40th token."""
    recipe = ARCHITECTURES[name]
    wide = {size: CONTEXT for size in WINDOWS if recipe.config.get(size)}
    ids = torch.randint(3, 120, (40,), generator=torch.Generator().manual_seed(0))
    narrow = whole_row(build(name), ids)
    other = whole_row(dataclasses.replace(recipe, config={**recipe.config, **wide}).model(), ids)
    assert torch.allclose(narrow[:8], other[:8], atol=1e-3), "not the same weights"
    assert (narrow[-1] - other[-1]).abs().max() > 0.01


def test_a_seed_is_a_model_and_the_callers_seed_is_kept() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first, second, third = build("gpt_oss"), build("gpt_oss"), build("gpt_oss", seed=1)
    assert torch.equal(torch.rand(2), expected)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)]
    assert all(same) and not torch.equal(first.lm_head.weight, third.lm_head.weight)
    sinks = [weight.detach() for key, weight in first.named_parameters() if "sink" in key]
    assert len(sinks) == 4 and all(float(weight.std()) > 0.2 for weight in sinks)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_refused_models_can_be_built(name: str) -> None:
    model = REFUSED[name].model()
    assert not model.training and REFUSED[name].reason in SAYS.keys() & MEANS.keys()


def test_every_causal_model_of_transformers_is_accounted_for() -> None:
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    tested = {recipe.model_type for recipe in ARCHITECTURES.values()}
    unknown = unaccounted(known, tested)
    if transformers.__version__.startswith(WRITTEN_FOR):
        assert not unknown, f"neither tested nor refused: {sorted(unknown)}"
        assert tested | set(SAME) | set(MISSING) <= known, "an entry that transformers does not have"
    else:
        print(f"transformers {transformers.__version__} also has {sorted(unknown)}")
    assert len(tested) >= 50
    assert not tested & (set(SAME) | set(MISSING)) and not set(SAME) & set(MISSING)
    refused = {name for name in REFUSED if REFUSED[name].recipe.model_type == name}
    assert not refused & tested, "both tested and refused, without a name of its own"
