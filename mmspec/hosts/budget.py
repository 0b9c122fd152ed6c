"""The target's own weights over a small part of its cache: the middle model of a cascade (TriForce, arXiv 2404.11912).

A round of drafting begins with a copy of the first slots (attention sinks, StreamingLLM, arXiv 2309.17453) and of the
latest slots, with their positions. Attention then covers `budget` slots instead of the whole text. The copy is made
in every round from the slots that the outer call committed. States of recurrent layers are copied completely.
Knobs: `budget` (more slots: closer to the target, slower), `sinks` (first slots that always stay).
With a budget that covers the text, this is the target itself.
"""

import torch
from torch import Tensor

from mmspec.core.state import State
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache


class BudgetedTarget:
    """A target that starts from a live call of the outer target.

    Args:
        target: The outer target.
        budget: The number of slots that are kept.
        sinks: How many of them are taken from the beginning of the text.

    Raises:
        ValueError: The sinks leave no room for the latest slots.
    """

    def __init__(self, target: TransformersTarget, budget: int = 512, sinks: int = 8) -> None:
        if not 0 <= sinks < budget:
            raise ValueError(f"sinks must be at least 0 and fewer than the budget of {budget} slots, got {sinks}")
        self.target, self.budget, self.sinks = target, budget, sinks
        target.keep_all = True  # the sinks, too
        self.offers = target.offers | {"live"}
        self.vocab = target.vocab
        self.context = target.context

    @torch.no_grad()
    def start(self, inputs: State, limit: int, width: int) -> Prefill:
        """Continue after the root of the outer call `inputs`."""
        outer: TransformersTargetCache = inputs.cache
        slots = self._cut_down(outer.slots, limit + width + 1)
        cache = TransformersTargetCache(slots, outer.passes, outer.mask)
        root = Draft.alone(inputs.root)
        output = self.target.verify(cache, root)
        self.target.commit(cache, root.index.parent[:, 1:].expand(inputs.rows, -1), torch.ones_like(inputs.emitted))
        known = inputs.prompt_length + max(inputs.host_emitted)
        behind = known - inputs.known  # shorter rows are padded on the left, as in a prompt
        order = torch.arange(known, device=behind.device) - behind[:, None]
        return Prefill(cache, output, inputs.history.gather(1, order.clamp(min=0)), inputs.pads + behind)

    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        return self.target.verify(cache, draft, first)

    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache, path, count)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        self.target.truncate(cache, length)

    def _cut_down(self, whole: SlotCache, more: int) -> SlotCache:
        """A cache of the sinks and the latest slots, with `more` free slots behind them."""
        kept = whole.length.clamp(max=self.budget)
        order = torch.arange(self.budget, device=kept.device)
        latest = (order >= self.sinks) * (whole.length - kept)[:, None]
        source = (order + latest).clamp(max=whole.capacity - 1)
        slots = SlotCache(self.target.anatomy.layers(), len(kept), self.budget + more, kept.device)
        slots.reserve(self.budget + more)
        for small, large in zip(slots.layers, whole.layers, strict=True):
            if large in whole.owning:
                keys, values = large.read(source)
                small.lazy_initialization(keys, values)
                small.write(order.expand(len(kept), -1), keys, values)
        for number, layer in whole.recurrent.items():
            slots.recurrent[number].copy(layer)
        slots.length, slots.longest = kept, min(whole.longest, self.budget)
        if whole.holes is not None:
            holes = whole.holes.gather(1, source)
            slots.holes = torch.nn.functional.pad(holes, (0, slots.capacity - self.budget))
        slots.shift = whole.shift + whole.length - kept
        return slots
