"""Classifier-free guidance on the slot cache: one logical row is two physical rows, with and without the condition.

Both halves read the same units and keep the same accepted path. The slots before the first unit hold the condition.

With another negative prompt within a call, the unconditional half is read again, committed units included. The new
prompt may be longer or shorter than the old one: the rows of a slot cache have lengths of their own.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.transfer import on_device
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Prefill, TargetOutput
from mmspec.hosts import prefill
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.devices import half_on_gpu, inference
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache


@dataclass
class GuidedCache:
    """The cache of one call, for a target with guidance."""

    slots: SlotCache  # keys and values of all physical rows, the conditional half first
    rows: int  # number of logical rows
    given: Tensor  # `[physical]` int64: slots of the condition, before the first unit
    behind: int = 0  # slots that a row may need behind its condition; 0 where conditions keep their length

    def physical(self, values: Tensor) -> Tensor:
        """Values of logical rows, repeated for every physical row: once, or twice under guidance."""
        halves = len(self.slots.length) // self.rows
        return values if halves == 1 else values.repeat(halves, *(1,) * (values.dim() - 1))

    def index(self, index: TreeIndex) -> TreeIndex:
        """The tree of every physical row, where each row has a tree of its own."""
        return index.repeated(len(self.slots.length) // self.rows)

    def apart(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores `[physical, node, …]`, split: with the condition, and without it (None where there is no guidance)."""
        halves = scores.split(self.rows)
        return halves[0], halves[1] if len(halves) > 1 else None

    def output(self, logits: Tensor, states: Tensor | None = None) -> TargetOutput:
        """Target output of logits `[physical, node, vocab]`, with hidden states `[physical, node, width]` if any."""
        given, null = self.apart(logits)
        return TargetOutput(logits=given, null=null, hidden=self.beside(states))

    def beside(self, states: Tensor | None) -> Tensor | None:
        """States with both halves side by side, as `Lends` has them: `[batch, node, halves * width]`; or None."""
        return None if states is None else torch.cat(states.split(self.rows), -1)

    def commit(self, path: Tensor, count: Tensor) -> None:
        """A target's `commit`: `path [rows, depth]`, `count [rows]`."""
        with inference():
            self.slots.commit(self.physical(path), self.physical(count))

    def joined(self, others: "Sequence[GuidedCache]") -> "GuidedCache":
        """A cache with the rows of others behind its own, in its own slots; all are guided, or none is."""
        every = (self, *others)
        self.slots.join([other.slots for other in others])
        rows = sum(cache.rows for cache in every)
        joined = replace(self, rows=rows, given=torch.cat([cache.given for cache in every]))
        if len(self.slots.length) == rows:
            return joined
        given, null, first = list[int](), list[int](), 0
        for cache in every:  # whose halves lie side by side
            given += range(first, first + cache.rows)
            null += range(first + cache.rows, first + 2 * cache.rows)
            first += 2 * cache.rows
        return joined._taken(given + null, rows)

    def taken(self, rows: Sequence[int]) -> "GuidedCache":
        """A cache with some rows of this one, in its own slots."""
        halves = len(self.slots.length) // self.rows
        return self._taken([half * self.rows + row for half in range(halves) for row in rows], len(rows))

    def _taken(self, physical: list[int], rows: int) -> "GuidedCache":
        order = on_device(physical, self.given.device, torch.int64)
        given = self.given[order]
        self.slots.take(order)
        self.slots.begun = [self.slots.begun[row] for row in physical]
        return replace(self, rows=rows, given=given)

    def load(self, call: "GuidedCache") -> "GuidedCache":
        """Take over the cache of a call: the one that the call goes on with."""
        assert isinstance(self.slots, BufferCache)
        return replace(call, slots=self.slots.load(call.slots))

    def fall_back(self) -> str:
        assert isinstance(self.slots, BufferCache)
        return self.slots.fall_back()

    def synced(self, emitted: Sequence[int]) -> None:
        """A target's `synced`."""
        self.slots.synced([*emitted] * (len(self.slots.length) // self.rows))

    def refuse_unguided(self) -> None:
        """Refuse a call without an unconditional half."""
        if len(self.slots.length) == self.rows:
            raise ValueError("this call began without guidance, so there is nothing that it could lead away from")

    def replace_null(self, fresh: SlotCache, given: Tensor, layers: Sequence[Any]) -> None:
        """Replace the unconditional half, whose conditions may have other lengths than before.

        `fresh` is a cache of the same model, whose `[rows]` rows hold the new conditions, `given [rows]` int64 slots
        each, and the committed units; `layers` are empty cache layers as transformers makes them for the model.
        """
        rows = self.rows
        self.slots.begun = [*self.slots.begun[:rows], *given.tolist()]
        self.slots = slots = self.slots.make_room(max(self.slots.begun) + self.behind, layers)
        slots.reserve(fresh.longest)
        for layer, renewed in zip(slots.owning, fresh.owning, strict=True):
            for ours, new in ((layer.keys, renewed.keys), (layer.values, renewed.values)):
                ours[rows:, :, : fresh.longest] = new[:, :, : fresh.longest]
        slots.set_length(torch.cat([slots.length[:rows], fresh.length]))
        slots.longest = max(slots.longest, fresh.longest)
        self.given = torch.cat([self.given[:rows], given])

    def truncate(self, length: Tensor) -> None:
        """A target's `truncate`: `length [rows]` counts units."""
        self.slots.set_length(self.physical(length) + self.given)


class OneShapeTarget:
    """The common part of targets whose `model` runs in one shape, too; a subclass defines `_begin`, which is `start`,
    with a cache whose passes have one shape if `fixed`.
    """

    model: Any

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """Prefill a condition; refuses more units than the model's context holds."""
        return self._begin(inputs, limit, width)

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        return self._begin(inputs, limit, width, fixed=True)

    @property
    def prefers_one_shape(self) -> bool:
        return half_on_gpu(self.model)

    def _begin(self, inputs: Any, limit: int, width: int, fixed: bool = False) -> Prefill:
        raise NotImplementedError


class GuidedTarget(OneShapeTarget):
    """The common part of such targets whose cache is a `GuidedCache`. Guided calls share passes, and the others do."""

    def beside(self) -> Any:
        return self

    def size(self, inputs: Any) -> tuple[int, int]:
        given = inputs.guiding.given
        return len(given), given.shape[:2].numel()

    def to_share(self) -> Any:
        return self

    def kind(self, cache: GuidedCache) -> Hashable:
        return None if cache.slots.fixed else len(cache.slots.length) // cache.rows

    @torch.no_grad()
    def joined(self, caches: Sequence[GuidedCache]) -> GuidedCache:
        return caches[0].joined(caches[1:])

    @torch.no_grad()
    def taken(self, cache: GuidedCache, rows: Sequence[int]) -> GuidedCache:
        return cache.taken(rows)

    def commit(self, cache: GuidedCache, path: Tensor, count: Tensor) -> None:
        cache.commit(path, count)

    def synced(self, cache: GuidedCache, emitted: Sequence[int]) -> None:
        cache.synced(emitted)

    def truncate(self, cache: GuidedCache, length: Tensor) -> None:
        cache.truncate(length)


def stacked(*halves: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Ids and masks of both halves in one batch, the narrower one padded on the left."""
    widest = max(ids.shape[1] for ids, _ in halves)
    wide = [[torch.nn.functional.pad(part, (widest - part.shape[1], 0)) for part in half] for half in halves]
    ids, mask = (torch.cat(parts) for parts in zip(*wide, strict=True))
    return ids, mask


def refuse_renewal(cache: GuidedCache, prompts: int) -> None:
    """Refuse another negative prompt where a call cannot have it."""
    slots = cache.slots
    cache.refuse_unguided()
    if prompts != cache.rows:
        raise ValueError(f"there are {prompts} negative prompts for {cache.rows} rows; give one a row")
    if slots.rings or slots.recurrent or slots.holes is not None:
        raise ValueError(
            "the negative prompt of this call cannot change: its cache has layers with a window or a state, or padding"
        )


@torch.no_grad()
def renew_null(
    cache: GuidedCache, model_info: ModelInfo, ids: Tensor, mask: Tensor, units: Tensor, words: Passes, coded: Passes
) -> None:
    """Let guidance lead away from another prompt, as if it had been the negative prompt from the beginning.

    `refuse_renewal` let the call's cache pass. The negative prompts `ids [row, any]` are padded on the left; `units
    [row, n]` has every row's committed units first, and what follows them in a row is ignored. `words` runs the model
    over prompts, `coded` over units.
    """
    given = mask.sum(1)
    most = int(given.max()) + units.shape[1]
    fresh = SlotCache(model_info.layers(), cache.rows, most, ids.device, cache.slots.fixed)
    committed = (cache.slots.length - cache.given)[: cache.rows].clamp(max=units.shape[1])
    prefill.prefill_chunks(words, fresh, ids, mask)
    prefill.append(coded, fresh, units, committed)
    cache.replace_null(fresh, given, model_info.layers())
