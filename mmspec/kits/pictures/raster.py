"""Passes of a causal raster transformer on the slot cache, with and without the condition; targets build on it.

The transformer reads conditioning positions, then cells in raster order; under guidance one logical row is two physical
rows. A target defines what a unit is, and makes its distributions of the scores.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.devices import awake, hooks_of
from mmspec.hosts.fused_layers import FusedLayers
from mmspec.hosts.guidance import GuidedCache
from mmspec.hosts.linear import Kernels, kernels, narrow, renew
from mmspec.hosts.masks import PassGeometry, added
from mmspec.hosts.slot_cache import SlotCache
from mmspec.kits.pictures.conditions import Condition, lengthened


class RasterModel(Protocol):
    """The transformer, a `torch.nn.Module`."""

    layers: nn.ModuleList  # transformer blocks
    rotary: Tensor  # `[position, …]`: one entry per position, conditioning positions first, then cells
    cls_embedding: Any  # from conditions to `[batch, position, dim]`; `null(rows)` is the null condition
    config: Any  # has `cls_token_num`: the number of conditioning positions

    def embed(self, units: Tensor, /) -> Tensor:
        """Embeddings `[batch, node, dim]` of units `[batch, node, *unit]`."""

    def run(self, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any, /) -> Tensor:
        """Hidden states of embedded positions, as `mmspec.kits.pictures.models.blocks` takes masks and keys."""


class Passed(NamedTuple):
    """The output of a pass."""

    scores: Tensor  # `[physical, node, …]`
    states: Tensor | None  # `[physical, node, width]`, what drafters read beside them; None: nothing


class Raster:
    """Prefill, verification passes, and another null condition within a call; `GuidedCache` commits and truncates.

    `score` goes from hidden states `[row, node, dim]` to the target's scores `[row, node, …]`, and is called while
    offloaded weights are on the device; `read`, from hidden states of all positions of a pass to the states that it
    returns beside the scores; None: none.
    """

    def __init__(
        self, model: RasterModel, score: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.model, self.score, self.read = model, score, read
        self._kernels: Kernels = Kernels()

    @torch.no_grad()
    def start(self, inputs: Condition, limit: int, width: int, fixed: bool = False) -> tuple[GuidedCache, Passed]:
        """Prefill a condition, as a target's `start`, or `start_fixed` if `fixed`; returns the call's cache, and the
        scores after the condition, `[physical, 1, …]`, with the states of all its positions: the conditional half
        first.
        """
        with awake(self._module):
            given, mask = embedded(self.model, inputs)
            rows = len(given) // 2 if inputs.guided else len(given)
            # Chosen in every call, since the model may have moved, or been offloaded.
            ours = given.device.type == "cpu" and not hooks_of(self._module)
            self._kernels = kernels(self._module) if ours else Kernels()
            renew(self._kernels)
            slots = self._slots(len(given), given.shape[1] + limit + width, given.device)
            slots.fixed = fixed
            slots.reserve(given.shape[1])
            slots.holes = None if mask is None else _holes(mask, slots.capacity)
            index = TreeIndex.chain(given.shape[1], given.device)
            hidden = self._pass(slots, given, index, 0)
            slots.length, slots.longest = slots.length + given.shape[1], given.shape[1]
            slots.begun = [given.shape[1]] * len(given)
            return GuidedCache(slots, rows, slots.length), Passed(self.score(hidden[:, -1:]), self._read(hidden))

    def begun(self, cache: GuidedCache, prefill: Prefill) -> Prefill:
        """A call's prefill, with who computes its linear layers."""
        return replace(prefill, products=self._kernels.named(cache.slots.fixed))

    def verify(self, cache: GuidedCache, draft: Draft, first: int = 0) -> Passed:
        """The pass over a rooted draft's nodes from `first` on."""
        with self.ready(cache, draft.nodes - first), torch.inference_mode():
            return self.forward(cache, draft, first)

    @contextmanager
    def ready(self, cache: GuidedCache, nodes: int) -> Iterator[None]:
        """A block in which `forward` may run over so many nodes, or be traced, or be replayed."""
        units = len(cache.slots.length) * nodes
        with awake(self._module), narrow(self._kernels, units, cache.slots.fixed), cache.slots.fused.used():
            yield

    def forward(self, cache: GuidedCache, draft: Draft, first: int = 0) -> Passed:
        """`verify` inside of `ready`; torch can trace it over a cache of buffers."""
        cache.slots.scratch = not draft.index.is_chain
        units = self.model.embed(cache.physical(draft.units[:, first:]))
        return self.passed(self._pass(cache.slots, units, cache.index(draft.index), first))

    def passed(self, hidden: Tensor) -> Passed:
        """The output of a pass, from hidden states `[physical, node, dim]`."""
        return Passed(self.score(hidden), self._read(hidden))

    def _read(self, hidden: Tensor) -> Tensor | None:
        return None if self.read is None else self.read(hidden)

    def renew_null(self, cache: GuidedCache, null: Tensor, null_mask: Tensor | None, units: Tensor) -> None:
        """As `mmspec.kits.pictures.callbacks.Renewing`, of a null condition as in `Condition`, maybe of fewer positions
        than the model reads; refuses a call that began without guidance, and another width.
        """
        slots, rows = cache.slots, cache.rows
        cache.refuse_unguided()
        with awake(self._module), torch.inference_mode():
            null, null_mask = lengthened(null, null_mask, self.model.config.cls_token_num)
            given = self.model.cls_embedding(null)
            if given.shape[:2] != (rows, self.model.config.cls_token_num):
                reads = self.model.config.cls_token_num
                raise ValueError(
                    f"guidance cannot lead away from {list(null.shape)}: there are {rows} rows, and this model reads "
                    f"{reads} positions"
                )
            x = torch.cat([given, self.model.embed(units)], 1)
            slots.reserve(x.shape[1])
            fresh = self._slots(rows, slots.capacity, given.device)
            fresh.reserve(slots.capacity)
            holes = None if null_mask is None else _holes(null_mask, fresh.capacity)
            fresh.holes = holes
            self._pass(fresh, x, TreeIndex.chain(x.shape[1], given.device), 0)
            for layer, renewed in zip(slots.owning, fresh.owning, strict=True):
                layer.keys[rows:], layer.values[rows:] = renewed.keys, renewed.values
            if holes is not None or slots.holes is not None:
                none = torch.zeros(rows, slots.capacity, dtype=torch.bool, device=given.device)
                first = none if slots.holes is None else slots.holes[:rows]
                slots.set_holes(torch.cat([first, none if holes is None else holes]))

    @property
    def _module(self) -> nn.Module:
        assert isinstance(self.model, nn.Module)
        return self.model

    def held(self, cache: GuidedCache) -> GuidedCache:
        """Buffers for captured rounds of calls like the one that has `cache`; refuses offloaded weights."""
        if hooks_of(self._module):
            raise ValueError("offloaded weights move in every pass, which cannot be captured")
        slots = BufferCache(self._layers(), cache.slots, cache.slots.most)
        slots.fused = FusedLayers.of(self._module)
        return replace(cache, slots=slots)

    def _layers(self) -> list[DynamicLayer]:
        return [DynamicLayer() for _ in self.model.layers]

    def _slots(self, rows: int, most: int, device: torch.device) -> SlotCache:
        return SlotCache(self._layers(), rows, most, device)

    def _pass(self, slots: SlotCache, x: Tensor, index: TreeIndex, first: int) -> Tensor:
        """Hidden states of embedded nodes `[row, node, dim]`; keys and values go behind the committed slots."""
        nodes = x.shape[1]
        slots.open(first, nodes)
        geometry = PassGeometry(slots.length, index.ancestor[:, first:], index.depth, slots.visible)
        alone = nodes == 1 and index.is_chain and slots.start is not None and slots.holes is None
        mask = None if alone else _seen(geometry, slots, first, nodes)
        if mask is not None and x.device.type != "cpu":  # else every layer converts it
            mask = added(mask, 1, x.dtype)
        position = slots.length[:, None] + index.depth[:, first:]
        # Finished rows run too, one position beyond the picture; their scores are not used.
        position = position.clamp(max=len(self.model.rotary) - 1)
        return self.model.run(x, position, mask, slots.layers)


def _seen(geometry: PassGeometry, slots: SlotCache, first: int, nodes: int) -> Tensor:
    """The tree without padding of captions; a node always sees itself, or its row would be empty."""
    if slots.holes is None:
        return geometry.tree
    slot = torch.arange(slots.visible, device=slots.length.device)
    own = slots.length[:, None] + torch.arange(first, first + nodes, device=slots.length.device)
    itself = slot == own[..., None]
    return geometry.tree & ~slots.holes[:, None, None, : slots.visible] | itself[:, None]


def embedded(model: RasterModel, condition: Condition) -> tuple[Tensor, Tensor | None]:
    """A condition `[physical, position, dim]`, the unconditional half last, and its mask; None: no padding."""
    given, mask = model.cls_embedding(condition.given), condition.mask
    if condition.guided:
        null = model.cls_embedding.null(len(given)) if condition.null is None else condition.null
        if mask is not None or condition.null_mask is not None:
            mask = given.new_ones(given.shape[:2], dtype=torch.bool) if mask is None else mask
            mask = torch.cat([mask.bool(), (mask if condition.null_mask is None else condition.null_mask).bool()])
        given = torch.cat([given, model.cls_embedding(null)])
    return given, mask


def _holes(mask: Tensor, capacity: int) -> Tensor:
    """The slots that hold padding: `[row, capacity]` bool."""
    return torch.nn.functional.pad(~mask.bool(), (0, capacity - mask.shape[1]))
