"""The room of a call, its cache and its history of units, follows the text that it writes, not the longest one."""

from typing import Any

import pytest
import torch

import mmspec.core.live as live
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.live import Live, with_room
from mmspec.core.warp import Warp
from mmspec.hosts.slot_cache import BLOCK, SlotCache
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.toys.history import HistoryTarget

VOCAB, ENDLESS = 97, 10**9


def slots_of(cache: SlotCache) -> set[int]:
    """The slots that the layers hold."""
    return {tensor.shape[2] for layer in cache.owning for tensor in (layer.keys, layer.values)}


def prompt(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(3))


def test_a_call_that_may_be_endless_and_ends_early_allocates_little(target: Any) -> None:
    ids = prompt(1, 5)
    text = target.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 5:].tolist()
    end = next(token for i, token in enumerate(text) if i > 8 and token not in text[:i])
    wanted = text[: text.index(end) + 1]
    for drafter in (None, DraftModel(TransformersTarget(target, drafting=True))):
        decoder = Decoder(TransformersTarget(target), drafter, k=4)
        state = decoder.start(ids, ENDLESS, warp=Warp(sample=False), ends=end)
        while not state.finished:
            decoder.advance(state)
        assert [units.tolist() for units in state.output()] == [wanted]
        assert slots_of(state.cache.slots) == {BLOCK} == {state.cache.slots.capacity}
        assert state.history.shape == (1, 5 + live.ROOM + 1)
        if drafter is not None:
            assert slots_of(state.memory.cache.slots) == {BLOCK}


@pytest.mark.parametrize("free", [True, False])
def test_growth_changes_nothing_and_slots_double(target: Any, free: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where lengths are not read in every pass, as on a GPU."""
    ids, limit = prompt(2, 30), 3 * BLOCK
    kept = Decoder(TransformersTarget(target)).generate(ids, limit, warp=Warp(sample=False)).units
    begin = SlotCache.__init__

    def begin_so(self: SlotCache, *given: Any) -> None:
        begin(self, *given)
        self.free_to_read = free

    monkeypatch.setattr(SlotCache, "__init__", begin_so)
    drafter = DraftModel(TransformersTarget(target, drafting=True))
    decoder = Decoder(TransformersTarget(target), drafter, k=5)
    sizes, visible, unused = list[int](), list[int](), list[int]()
    state = decoder.start(ids, limit, warp=Warp(sample=False))
    while not state.finished:
        decoder.advance(state)
        slots = state.cache.slots
        sizes.append(slots.capacity)
        visible.append(slots.visible)
        assert slots_of(slots) == {slots.capacity} and slots.visible <= slots.capacity <= slots.most
        assert slots.longest >= int(slots.length.max())
        reached = int(slots.length.max()) + 2 * state.budget.width
        unused.append(slots.visible - (max(BLOCK, reached + BLOCK) if free else max(BLOCK, 2 * reached)))
    assert all(torch.equal(mine, right) for mine, right in zip(state.output(), kept, strict=True))
    assert sorted(set(sizes)) == [64, 128, 256]
    assert max(unused) <= 0, "attention covers blocks that no row has reached, or more than twice of what rows have"
    assert visible == sorted(visible)


def test_a_cache_that_grew_in_a_pass_is_written_outside_of_it(target: Any) -> None:
    decoder = Decoder(TransformersTarget(target))
    state = decoder.start(prompt(1, BLOCK - 4), 40, warp=Warp(sample=False))
    while not state.finished:
        decoder.advance(state)
    assert state.cache.slots.capacity > BLOCK
    assert not any(layer.keys.is_inference() for layer in state.cache.slots.owning)


def test_holes_grow_with_the_slots() -> None:
    cache = SlotCache([], 2, 200, torch.device("cpu"))
    cache.reserve(10)
    cache.holes = torch.zeros(2, cache.capacity, dtype=torch.bool)
    cache.holes[1, 3] = True
    cache.reserve(65)
    assert cache.capacity == 128 and cache.holes.shape == (2, 128) and cache.holes.nonzero().tolist() == [[1, 3]]
    cache.reserve(10**6)
    assert cache.capacity == cache.most == 256


def test_the_history_grows_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    large, units = HistoryTarget.random(9, seed=0), torch.tensor([[1, 2], [3, 4], [5, 6]])
    drafter = DraftModel(large.near(1, 0.3))
    kept = Decoder(large, drafter, k=4).generate(units, 50, seed=1).units
    monkeypatch.setattr(live, "ROOM", 6)
    widths = list[int]()
    output = Decoder(large, drafter, k=4).generate(
        units, 50, seed=1, on_step=lambda state: widths.append(state.history.shape[1])
    )
    assert all(torch.equal(mine, right) for mine, right in zip(output.units, kept, strict=True))
    assert sorted(set(widths)) == [2 + 6 + 1, 2 + 12 + 1, 2 + 24 + 1, 2 + 48 + 1, 2 + 50 + 1]


def test_a_history_with_more_room_holds_the_same_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ROOM", 4)
    small = Live.begin(torch.ones(1, 3, 2), torch.zeros(1, dtype=torch.int64), 100).history
    small[:, 3:] = 7  # the last column, too
    assert small.shape == (1, 8, 2) and with_room(small, 3, 4, 100) is small
    larger = with_room(small, 3, 5, 100)
    assert larger.shape == (1, 3 + 8 + 1, 2)
    assert larger[0, :, 0].tolist() == [1, 1, 1, 7, 7, 7, 7, 0, 0, 0, 0, 0]
    assert with_room(larger, 3, 10**6, 20).shape == (1, 3 + 20 + 1, 2)
