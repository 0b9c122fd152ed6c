"""The slot cache of a captured pass: its tensors keep their addresses, and its passes have one shape.

Calls come and go: each is loaded into the same tensors. The number of slots depends on prompt, limit and width, never
on a draft. Prompts of texts differ, so that there it is a power of two, and few passes are captured.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.hosts.fingerprint import code
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import SlotLayer


class BufferCache(SlotCache):
    """An empty cache for calls like a given one.

    Args:
        layers: Empty cache layers as transformers makes them for the model.
        call: The cache of a call.
        most: The number of slots of a row, at least the call's.
    """

    def __init__(self, layers: Sequence[Any], call: SlotCache, most: int) -> None:
        with torch.inference_mode(False):
            super().__init__(layers, len(call.length), most, call.length.device, True, call.rings)
            self.end = self.length.clone()
            self.shift = torch.zeros_like(call.shift)
            self.origin = self.length.clone()
            self.places = None if call.places is None else torch.zeros_like(call.places)

    def load(self, call: SlotCache) -> None:
        """Copy what the cache of a call holds: one of the same layers, with as many rows and at most as many slots."""
        if call is self:  # which a call has that is planned anew
            self.hold_still()
            return
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
        self.hold_still()

    def hold_still(self) -> None:
        """Attend over all slots, and write behind each row's own: eager passes may have chosen otherwise."""
        self.start, self.visible = None, self.most

    def open_static(self, nodes: int) -> None:
        """`open` for a captured pass; torch can trace it."""
        self.running = None
        for layer in self.recurrent.values():
            layer.open()
        if self.rings:
            self.reach(nodes)
        self.place(0, nodes)

    def reach(self, nodes: int) -> None:
        self.end.copy_(torch.maximum(self.end, self.length + nodes))

    def make_room(self, most: int, layers: Sequence[Any]) -> SlotCache:
        if most <= self.most:
            return self
        larger = BufferCache(layers, self, most)
        larger.load(self)
        return larger

    def set_length(self, length: Tensor) -> None:
        self.length.copy_(length)

    def set_holes(self, holes: Tensor) -> None:
        if self.holes is None:  # the next plan of the call has some
            self.holes = holes
        else:
            self.holes.copy_(holes)

    def commit_static(self, path: Tensor, count: Tensor) -> None:
        """`commit` for a captured pass; torch can trace it."""
        self.keep(path, count)
        self.length.add_(count)


def captured_shape(model: nn.Module, call: SlotCache, most: int) -> tuple[Any, ...]:
    """What two calls of a model share if one captured pass of `most` slots a row can serve both.

    A captured pass runs the code that the model had when it was traced: hooks that were set since need another one.
    """
    first = next(iter(call.owning), None)
    held = None if first is None else (first.keys.dtype, first.keys.device)
    rings = tuple(sorted(call.rings.items()))
    placed = None if call.places is None else call.places.shape
    return code(model), len(call.length), most, call.holes is None, call.shift.shape, placed, rings, held
