"""A draft model over a streaming cache: the lowest level of a cascade (TriForce, arXiv 2404.11912).

It sees a text's first units, the sinks, and its latest ones (StreamingLLM, arXiv 2309.17453), at the positions that
they have in the cache. The inner calls of a cascade begin anew in every round of the outer one; the cache goes on,
rolled back to what came true. Where it is full, the units that stay are read anew, and a quarter of it is free again;
so no key says anything of a unit that went.
Guarantee: as of `draft-model`.
Knobs: `budget` (slots: more sees more, and costs more), `sinks` (first units that stay).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.draft_model import CATCH_UP, DraftModel, DraftModelMemory
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.hosts.target import TransformersTarget


@dataclass
class StreamedMemory(DraftModelMemory):
    known: Sequence[int] = ()  # units of every row when its call began, on the host
    gone: list[int] = field(default_factory=list)  # units of every row between those that the cache has, likewise


class Streamed(DraftModel):
    """Drafts chains with a small model, in an inner decoder that starts from a running call."""

    def __init__(self, model: TransformersTarget, budget: int, sinks: int) -> None:
        context = model.context
        if not 0 <= sinks < budget - budget // 4 or (context is not None and budget + CATCH_UP > context):
            raise ValueError(
                f"a streaming cache of {budget} slots with {sinks} sinks does not fit: the sinks are fewer than three "
                f"quarters of its slots, and {CATCH_UP} more slots are at most the draft model's context of {context}"
            )
        super().__init__(model)
        model.keep_all = True  # the sinks, too
        self.small, self.budget, self.sinks = model, budget, sinks

    def start(self, state: State, inputs: State) -> StreamedMemory:
        """Go on behind the known units of the outer call `inputs`, which are the prompt of the inner one, `state`."""
        known = [state.prompt_length - pads for pads in state.host.pads]
        memory = self._rolled_back(state, inputs, known)
        memory = self._read(state, known) if memory is None else memory
        memory.cache.slots.begun = [n - gone for n, gone in zip(known, memory.gone, strict=True)]
        return memory

    def _read(self, state: State, known: Sequence[int]) -> StreamedMemory:
        """A cache of the units that are seen, with free slots."""
        stay, width = self.budget - self.budget // 4, max(self.shape.fed(state.budget.k) + 1, CATCH_UP)
        prompt = latest(state.history[:, : state.prompt_length], state.pads, stay, self.sinks)
        cache = self.small.start(prompt, self.budget + state.limit, width).cache
        gone = [max(0, n - stay) for n in known]
        return StreamedMemory(cache, self.shape, width, torch.zeros_like(state.emitted), known=known, gone=gone)

    def _rolled_back(self, state: State, inputs: State, known: Sequence[int]) -> StreamedMemory | None:
        """The memory of the inner call before, without what did not come true; None: it is full, or cannot go back."""
        inner: State | None = inputs.memory
        if inner is None or "truncate" not in self.small.offers:
            return None
        memory: StreamedMemory = inner.memory
        if any(n - gone + state.limit > self.budget for n, gone in zip(known, memory.gone, strict=True)):
            return None
        begun, order = inner.prompt_length - inner.pads, torch.arange(max(inner.host.emitted), device=inner.pads.device)
        place = (inputs.pads + begun)[:, None] + order
        true = take_nodes(inputs.history, place.clamp(max=inputs.history.shape[1] - 1))
        said = inner.history[:, inner.prompt_length : inner.prompt_length + len(order)]
        right = (said == true) & (place < inputs.known[:, None]) & (order < inner.emitted[:, None])
        held = torch.minimum(begun + memory.seen, begun + right.cumprod(1).sum(1))
        self.small.truncate(memory.cache, held - on_device(memory.gone, held.device))
        lag = memory.lag + max(now - before for now, before in zip(known, memory.known, strict=True))
        seen = held - (state.prompt_length - state.pads)
        return StreamedMemory(memory.cache, self.shape, memory.width, seen, lag, known=known, gone=memory.gone)

    def _left(self, state: State) -> None:
        """Nothing bounds drafts: the cache is never longer than its budget."""


def latest(units: Tensor, pads: Tensor, budget: int, sinks: int) -> dict[str, Any]:
    """A prompt of at most `budget` units a row: the first `sinks` and the latest of `units [batch, known]`, which are
    padded on the left by `pads [batch]`.
    """
    known = units.shape[1] - pads
    kept = known.clamp(max=budget)
    width = min(budget, units.shape[1])
    order = torch.arange(width, device=units.device) - (width - kept)[:, None]
    place = pads[:, None] + order + torch.where(order < sinks, 0, (known - kept)[:, None])
    return {"input_ids": take_nodes(units, place.clamp(min=0)), "attention_mask": (order >= 0).long()}
