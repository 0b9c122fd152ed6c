"""The slot cache of captured rounds: its tensors keep their addresses, and its passes have one shape.

Calls come and go: each is loaded into the same tensors. The number of slots depends on prompt, limit and width, never
on a draft. Prompts of texts differ, so that there it is a power of two, and few rounds are captured. Torch can trace
passes over it and commits: they read nothing on the host.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.tree import TreeIndex
from mmspec.hosts.fingerprint import code, settings
from mmspec.hosts.flex_attention import FLEX, fits
from mmspec.hosts.fused_layers import FusedLayers
from mmspec.hosts.masks import NAME
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import SlotLayer
from mmspec.hosts.tree_op import Branches


class BufferCache(SlotCache):
    """An empty cache for calls like `call`, with `most` slots a row, at least the call's.

    The layers are empty cache layers as transformers makes them for the model.
    """

    def __init__(self, layers: Sequence[Any], call: SlotCache, most: int) -> None:
        device = call.length.device
        with torch.inference_mode(False):
            super().__init__(layers, len(call.length), most, device, True, call.rings)
            self.end = self.length.clone()
            self.shift = torch.zeros_like(call.shift)
            self.origin = self.length.clone()
            self.places = None if call.places is None else torch.zeros_like(call.places)
            self._branches: dict[tuple[int, ...], Branches] = {}
        self.expect(TreeIndex.static([-1], device))

    @classmethod
    def of_passes(cls, passes: Passes, layers: Sequence[Any], call: SlotCache, most: int) -> "BufferCache":
        """A cache for passes of a transformers model, with the faster attention where they can have it."""
        buffers = cls(layers, call, most)
        buffers.attention = FLEX if fits(passes, call) else NAME
        buffers.fused = FusedLayers.of(passes.model_info.model, passes.try_with)
        return buffers

    def load(self, call: SlotCache) -> "BufferCache":
        """Copy what the cache of a call holds: one of the same layers and as many rows, whose committed slots fit."""
        if call is self:  # which a call has that is planned anew
            return self
        if self.fused.joined is not None:
            self.fused.joined.renew()
        self.reserve(self.most)
        for mine, its in zip(self.layers, call.layers, strict=True):
            if isinstance(mine, SlotLayer) and isinstance(its, SlotLayer) and its.is_initialized:
                mine.load(its)
        for number, layer in self.recurrent.items():
            layer.load(call.recurrent[number])
        for mine, its in ((self.length, call.length), (self.end, call.end), (self.shift, call.shift)):
            mine.copy_(its)
        if self.places is not None and call.places is not None:
            self.origin.copy_(call.origin)
            self.places.copy_(call.places)
        if call.holes is not None:
            if self.holes is None:
                with torch.inference_mode(False):
                    self.holes = torch.zeros(len(self.length), self.most, dtype=torch.bool, device=self.length.device)
            self.holes.zero_()[:, : call.holes.shape[1]].copy_(call.holes)
        self.begun, self.longest, self.unsure = call.begun, call.longest, call.unsure
        self.visible = self.most
        return self

    @torch.inference_mode(False)
    def expect(self, index: TreeIndex) -> None:
        """Prepare for passes over a tree."""
        if self.recurrent and index.listed is not None:
            self._branches[index.listed] = branches = Branches.of(index, self.state_dtype)
            assert branches.levels is not None  # listed now, on the host; torch would trace it in every pass

    def fall_back(self) -> str:
        """Attend as eager passes do: what that means, for a warning; "" if passes do so already."""
        before, self.attention = self.attention, NAME
        return "attention reads all slots that are allocated" if before == FLEX else ""

    def open(self, first: int, nodes: int) -> None:
        self.running = None
        for layer in self.recurrent.values():
            layer.open()
        if self.rings:
            self.reach(first + nodes)
        self.place(first, nodes)

    def reach(self, nodes: int) -> None:
        self.end.copy_(torch.maximum(self.end, self.length + nodes))

    def branches(self, index: TreeIndex) -> Branches:
        known = None if index.listed is None else self._branches.get(index.listed)
        return Branches(index, self.state_dtype) if known is None else known

    def make_room(self, most: int, layers: Sequence[Any]) -> SlotCache:
        return self if most <= self.most else BufferCache(layers, self, most).load(self)

    def set_length(self, length: Tensor) -> None:
        self.length.copy_(length)

    def set_holes(self, holes: Tensor) -> None:
        if self.holes is None:  # the next plan of the call has some
            self.holes = holes
        else:
            self.holes.copy_(holes)

    def commit(self, path: Tensor, count: Tensor) -> None:
        self.keep(path, count)
        self.length.add_(count)


def captured_shape(model: nn.Module, call: SlotCache, most: int) -> tuple[Any, ...]:
    """A key that two calls of a model share if one captured round over `most` slots a row can serve both: it runs the
    code that the model had when it was traced or recorded, not hooks or adapters that were set since.
    """
    first = next(iter(call.owning), None)
    held = None if first is None else (first.keys.dtype, first.keys.device)
    rings = tuple(sorted(call.rings.items()))
    placed = None if call.places is None else call.places.shape
    return (
        code(model),
        settings(model),
        len(call.length),
        most,
        call.holes is None,
        call.shift.shape,
        placed,
        rings,
        held,
    )
