"""Hidden states that a target returns: those of unmodified transformers, over prompts, batches and trees."""

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.hidden import FINAL, GivesHidden
from mmspec.core.types import Draft
from mmspec.hosts import prefill
from mmspec.hosts.features import Reading
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed
from tests.support.zoo import ARCHITECTURES, RECURRENT, build

FAMILIES = {recipe.family: name for name, recipe in reversed({**ARCHITECTURES, **RECURRENT}.items())}.values()
NONE = {"hrm_text": "no list of its", "gemma3n_text": "several streams", "mllama": "leaves layers out"}
"""Architectures without one state per layer boundary, and what the message says."""
OWN_RECORD = {"mamba", "mamba2", "falcon_mamba"}
"""transformers' record of their states begins behind the first layer."""
FAST = {*list(FAMILIES)[::3], *NONE}
NAMES = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in (*ARCHITECTURES, *RECURRENT)]
"""The texts of every family are compared in the fast tier (`test_architectures.py`); their states, of every third."""
PARENTS = [-1, -1, 0, 0, 1, 2]


def target_of(model: Any) -> TransformersTarget:
    found = installed().target_for(model)
    assert found is not None
    target = found.load()(model)
    assert isinstance(target, TransformersTarget) and isinstance(target, GivesHidden)
    return target


def alone(model: Any, ids: Tensor, layers: int) -> Tensor:
    """The states of a row by itself: boundaries 0 … layers - 1 and the last one behind its norm, `[unit, width]`."""
    takes = "position_ids" in inspect.signature(type(model).forward).parameters
    positions = {"position_ids": torch.arange(len(ids))[None]} if takes else {}
    with torch.no_grad():
        out = model(input_ids=ids[None], output_hidden_states=True, use_cache=False, **positions)
        recorded = list(out.hidden_states)
        if model.config.model_type in OWN_RECORD:
            recorded = [model.get_input_embeddings()(ids[None]), *recorded[: layers - 1], recorded[-1]]
    return torch.cat(recorded, -1)[0]


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=2e-4 * max(1.0, float(b.abs().max())), rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_the_row_alone(name: str, prompts: Callable) -> None:
    """A ragged prompt and a tree behind it, at all boundaries."""
    recipe = {**ARCHITECTURES, **RECURRENT}[name]
    if name in NONE:
        with pytest.raises(ValueError, match=NONE[name]):
            target_of(build(name)).with_hidden((0, 1, 2, 3, FINAL)).start(prompts(3), 8, 8)
        return
    rows = 1 if recipe.alone else 3  # a model that counts padding is refused with it
    model, inputs = build(name), prompts(rows)
    plain = target_of(model)
    boundaries = (*range(plain.layers()), FINAL)
    target = plain.with_hidden(boundaries)
    started = target.start(inputs, 12, len(PARENTS) + 1)
    assert started.hidden is not None and started.output.hidden is None
    units = torch.randint(3, 100, (rows, len(PARENTS) + 1), generator=torch.Generator().manual_seed(1))
    draft = Draft.tree(units[:, 1:], PARENTS).rooted(units[:, 0], torch.full((rows,), 9))
    verified = target.verify(started.cache, draft)
    assert verified.hidden is not None and verified.hidden.shape[:2] == (rows, 7)
    for row in range(rows):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        whole = alone(model, ids, plain.layers())
        assert close(started.hidden[row, -len(ids) :], whole)
        for leaf in (4, 5, 6):
            path = [node for node in range(7) if draft.index.ancestor[0, leaf, node]]
            after = alone(model, torch.cat([ids, units[row, path]]), plain.layers())
            assert close(verified.hidden[row, path], after[len(ids) :])
    assert plain.verify(started.cache, draft).hidden is None, "the target itself changed"


def test_the_last_boundary_is_before_the_final_norm(target: Any, prompts: Callable) -> None:
    ours = target_of(target).with_hidden((2, FINAL)).start(prompts(1), 4, 1).hidden
    before, behind = ours.chunk(2, -1)
    assert close(target.model.norm(before), behind) and not close(before, behind)


def test_nothing_is_left_behind_and_nothing_is_kept_unasked(target: Any, prompts: Callable) -> None:
    plain = target_of(target)
    started = plain.with_hidden((0, 1, 2, FINAL)).start(prompts(2), 4, 4)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in target.modules())
    with Reading(ModelInfo.of(target), ()) as reading:
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in target.modules())
    assert reading.states is None and plain.start(prompts(2), 4, 4).hidden is None
    assert started.hidden.shape == (2, 14, 4 * 64)


def test_chunks_and_other_ways_into_the_cache(target: Any, prompts: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in chunks, as embeddings, and behind an earlier turn; padded rows end at the right edge."""
    ours = target_of(target).with_hidden((1, FINAL))
    inputs = prompts(3)
    whole = ours.start(inputs, 4, 2).hidden
    monkeypatch.setattr(prefill, "CHUNK", 4)
    chunked = ours.start(inputs, 4, 2).hidden
    there = inputs["attention_mask"].bool()
    assert chunked.shape == whole.shape and close(chunked[there], whole[there])
    embedded = ours.start({"inputs_embeds": target.get_input_embeddings()(inputs["input_ids"]), **_mask(inputs)}, 4, 2)
    assert embedded.prompt.shape[1] == 0 and close(embedded.hidden[there], whole[there])
    ids = inputs["input_ids"][:1]
    earlier = target(input_ids=ids[:, :9], use_cache=True).past_key_values
    behind = ours.start({"input_ids": ids, "past_key_values": earlier}, 4, 2).hidden
    assert behind.shape[1] == 5 and close(behind, whole[:1, -5:])


def _mask(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"input_ids": inputs["input_ids"][:, :0], "attention_mask": inputs["attention_mask"]}


def test_another_thread_is_not_listened_to(target: Any) -> None:
    model_info = ModelInfo.of(target)
    ids = torch.tensor([[5, 6, 7]])
    with Reading(model_info, (1,)) as reading, torch.no_grad():
        other = threading.Thread(target=lambda: target(input_ids=ids.flip(1)))
        other.start()
        other.join()
        target(input_ids=ids)
    assert reading.states is not None and reading.states.shape == (1, 3, 64)


def test_there_is_no_such_boundary(target: Any) -> None:
    ours = target_of(target)
    assert ours.layers() == len(ours.model_info.language.layers) == 2 and ours.hidden_size == 64
    for wrong in ((3,), (-2,), ()):
        with pytest.raises(ValueError, match="2 layers, so its boundaries are 0 to 2"):
            ours.with_hidden(wrong)


def test_a_captured_pass_returns_the_states_of_an_eager_one(target: Any, prompts: Callable) -> None:
    """Traced by torch, over a tree; nothing is left on the model."""
    ours = target_of(target).with_hidden((0, 2, FINAL))
    units = torch.randint(3, 100, (3, len(PARENTS) + 1), generator=torch.Generator().manual_seed(1))
    draft = Draft.tree(units[:, 1:], PARENTS).rooted(units[:, 0], torch.full((3,), 9))
    starts = [ours.start_fixed(prompts(3), 12, 7) for _ in range(2)]
    expected = ours.verify(starts[0].cache, draft)
    other = target_of(target).with_hidden((1, 2, FINAL))
    assert ours.capture_key(starts[0].cache) == ours.capture_key(starts[1].cache) != other.capture_key(starts[0].cache)
    held = ours.held(starts[1].cache, 7)
    held.load(starts[1].cache)
    run = torch.compile(lambda: ours.forward(held, draft), backend="eager", fullgraph=True)
    for _ in range(2):
        with torch.no_grad(), ours.ready(held, 7):
            found = run()
        assert found.hidden is not None and expected.hidden is not None and close(found.hidden, expected.hidden)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in target.modules())
    torch._dynamo.reset()
