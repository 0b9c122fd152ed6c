"""The cache of the target over transformers models, for one call."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import Cache

from mmspec.hosts.guidance import GuidedCache
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache


@dataclass
class TransformersTargetCache:
    slots: SlotCache  # keys, values and states
    passes: Passes  # runs the model; found when the call began, because the model may have been moved or cast before
    # `[batch, prompt]` int64: 1 for units, 0 for padding, of the prompt's columns as transformers counts them
    mask: Tensor
    given: Cache | None = None  # the cache that the call came with, which `export` fills and returns; or None
    plain: bool = True  # whether the prompt was ids and padding alone
    # `[physical]` int64: under guidance the units of both halves' prompts; None without guidance
    prompts: Tensor | None = None
    behind: int = 0  # slots that a row may need behind its prompt

    @property
    def guided(self) -> bool:
        """True if every row has an unconditional half, in the second half of the slots."""
        return self.prompts is not None

    @property
    def guidance(self) -> GuidedCache:
        """The slots as rows of the call: two of them a row under guidance."""
        rows = len(self.slots.length) // (2 if self.guided else 1)
        return GuidedCache(self.slots, rows, self.slots.length if self.prompts is None else self.prompts, self.behind)

    def load(self, call: "TransformersTargetCache") -> "TransformersTargetCache":
        """Take over the cache of a call: the one that the call goes on with."""
        return replace(call, slots=self.guidance.load(call.guidance).slots)

    def fall_back(self) -> str:
        return self.guidance.fall_back()


@contextmanager
def rewound(cache: TransformersTargetCache, units: int) -> Iterator[None]:
    """A block in which every row has `units` fewer committed units, and what passes write there is undone behind it; a
    row that has fewer begins anew. Some row has so many; no layer keeps a ring, and none is recurrent.
    """
    slots = cache.slots
    length = slots.length.clone()  # captured rounds have one tensor for it
    begin = (length - units).clamp(min=0)
    at = begin[:, None] + torch.arange(units, device=length.device)
    kept = [(layer, *layer.read(at)) for layer in slots.owning]
    slots.set_length(begin)
    try:
        yield
    finally:
        slots.set_length(length)
        for layer, keys, values in kept:
            layer.write(at, keys, values)
