"""Positions that are the model's own: a grid of codes is refused wherever it is met, counted slots are followed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mmspec
from mmspec.compare.equality import stock
from mmspec.core.decoder import Decoder
from mmspec.hosts import self_check
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.self_check import StockGenerate
from mmspec.hosts.stock_generate import AHEAD, position_jump
from mmspec.hosts.target import TransformersTarget
from tests.support.zoo import REFUSED
from tests.support.zoo.recipe import scaled
from tests.support.zoo.vision import VISION

GRID = "own generate puts the next tokens at positions"


@pytest.fixture(scope="module")
def glm_image() -> Any:
    return scaled(REFUSED["glm_image"].model())


def picture() -> dict[str, Any]:
    """A prompt that ends where a picture of 3 × 4 codes begins."""
    ids = torch.randint(3, 120, (1, 9), generator=torch.Generator().manual_seed(0))
    ids[0, -1] = 124
    return dict(input_ids=ids, image_grid_thw=torch.tensor([[1, 3, 4]]), images_per_sample=torch.tensor([1]))


CALL = dict(do_sample=False, max_new_tokens=12)


def test_a_grid_is_refused_by_the_text_target(glm_image: Any) -> None:
    """The image plugin has a target of its own, which `enable` takes (`tests/image/test_glm_image.py`)."""
    first = stock(glm_image, picture(), 0, **CALL).ids
    with pytest.raises(ValueError, match=GRID):
        TransformersTarget(glm_image)
    with pytest.raises(ValueError, match=GRID):
        TransformersTarget(glm_image, drafting=True)
    assert torch.equal(stock(glm_image, picture(), 0, **CALL).ids, first)


@pytest.mark.parametrize("look", [TransformersTarget, mmspec.enable])
def test_looking_leaves_what_a_model_remembers(glm_image: Any, look: Callable[[Any], Any]) -> None:
    """GLM-Image keeps the positions of its last picture; the next call of stock must find its own."""
    stock(glm_image, picture(), 0, **CALL)
    inner = glm_image.model
    before = inner._cached_decode_position_ids, inner._prefill_len, inner.rope_deltas
    if look is TransformersTarget:
        with pytest.raises(ValueError, match=GRID):
            look(glm_image)
    else:
        look(glm_image).disable()
    after = inner._cached_decode_position_ids, inner._prefill_len, inner.rope_deltas
    assert all(mine is theirs for mine, theirs in zip(before, after, strict=True))


def test_a_call_with_a_grid_is_refused_where_the_model_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_on_a_grid", lambda model_info, paths: "")
    model = scaled(REFUSED["glm_image"].model())  # which has seen no picture
    decoder = Decoder(TransformersTarget(model), k=0)
    with pytest.raises(ValueError, match=r"in this call.*\(9, 9, 9\), \(9, 9, 10\), \(9, 9, 11\)"):
        decoder.generate(picture(), 12)


def test_asking_ahead_changes_no_cache() -> None:
    """EXAONE 4.5 counts slots in its forward, padding included, so that the forward is asked."""
    recipe = VISION["exaone4_5"]
    model, inputs = recipe.model(), recipe.inputs(3)
    columns = inputs["input_ids"].shape[1]
    loop = StockGenerate(
        ModelInfo.of(model), inputs["input_ids"], {k: v for k, v in inputs.items() if k != "input_ids"}
    )
    positions = loop.ahead()
    assert loop.counts and loop.cache.get_seq_length() == columns
    assert positions is not None and positions.shape == (3, AHEAD) and not position_jump(positions)
    assert (positions == columns + torch.arange(AHEAD)).all(), "padding was not counted"
    assert not any(part._forward_pre_hooks for part in model.modules())
    fork, unit = loop.fork(), loop.logits.argmax(-1)
    fork.step(unit)
    assert fork.cache.get_seq_length() == columns + 1 and loop.cache.get_seq_length() == columns
    loop.step(unit)
    assert torch.equal(loop.logits, fork.logits) and loop.positions is not None
    assert (loop.positions == columns).all()


def test_own_steps_are_compared_once_for_a_kind_of_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, steps = VISION["qwen2_vl"], []
    right = StockGenerate.step
    model = recipe.model()
    with mmspec.enable(model, "prompt-lookup"):
        monkeypatch.setattr(StockGenerate, "step", lambda self, units: (steps.append(len(units)), right(self, units)))
        for batch in (3, 3, 2):
            model.generate(**recipe.inputs(batch), **CALL)
    assert steps == [3] * self_check.STEPS


def test_what_jumps_is_said() -> None:
    counted = torch.arange(5)
    assert not position_jump(counted[None]) and not position_jump(
        counted.expand(3, 2, -1) + torch.tensor([1, 5, 9])[:, None, None]
    )
    still = torch.stack([counted, counted * 0, counted])[:, None]
    assert "(0, 0, 0), (1, 0, 1), (2, 0, 2)" in position_jump(still)
    assert "7, 7, 8" in position_jump(torch.stack([counted, torch.tensor([7, 7, 8, 9, 10])]))


def test_a_model_that_steps_otherwise_is_refused(make_llama: Callable) -> None:
    """Its forward is sound; what its own `generate` feeds it is another position, or another token."""
    model = make_llama()
    right = model.prepare_inputs_for_generation

    def late(ids: Any, **known: Any) -> Any:
        made = right(ids, **known)
        return {**made, "position_ids": made["position_ids"] + (0 if known.get("is_first_iteration") else 1)}

    def other(ids: Any, **known: Any) -> Any:
        made = right(ids, **known)
        return {**made, "input_ids": made["input_ids"] if known.get("is_first_iteration") else made["input_ids"] * 0}

    for way, says in ((late, "puts token 24 at position"), (other, "in its own generate, its logits are off by")):
        model.prepare_inputs_for_generation = way
        with pytest.raises(ValueError, match=says):
            mmspec.enable(model)
    del model.prepare_inputs_for_generation
    with mmspec.enable(model):
        pass


def test_a_cache_that_was_filled_with_gradients_is_taken(make_llama: Callable) -> None:
    model, ids = make_llama(), torch.randint(3, 120, (1, 9), generator=torch.Generator().manual_seed(0))
    call = dict(max_new_tokens=8, do_sample=False)

    def cache() -> Any:
        return model(ids[:, :6], use_cache=True).past_key_values

    right = model.generate(ids, past_key_values=cache(), **call)
    with mmspec.enable(model, "prompt-lookup"):
        assert torch.equal(model.generate(ids, past_key_values=cache(), **call), right)
