"""A draft model: a smaller model of the same units drafts a chain (arXiv 2211.17192, 2302.01318) or another tree.

The draft model is itself a `Target`. It grows the draft level by level in its cache's scratch (`Target.verify` from
`first` on), and commits the part that the rule accepted; so it never has to roll back, and recurrent models can draft,
too. Its cache may lag behind the call: known units that it was never fed (the last one of an accepted path, all units
of rounds without a draft) are fed as one chain that ends with the root, before the first level; this pass gives the
distribution at the root. Distributions pass through the call's warp, so that a draft's distribution is the one that it
was really drawn from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded, LengthAware
from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.growing import Scratch, grown
from mmspec.core.drafters.shapes import Chain, Ending, Level, Shape
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput

CATCH_UP = 16
"""Least width of a draft model's pass: known units that its cache lacks are fed in passes of at least this width."""


@dataclass
class DraftModelMemory:
    """The drafter's memory of a call."""

    cache: Any  # the draft model's cache
    shape: Shape  # the shape of the call's draft trees
    width: int  # most nodes of a pass
    seen: Tensor  # `[batch]` int64: number of emitted units in the cache
    lag: int = 0  # most emitted units before the root that any row's cache lacks, on the host
    # What this round's proposal left in the cache, root included; None if nothing of it can be committed
    scratch: Scratch | None = None


class DraftModel:
    """Drafts with a smaller model.

    Args:
        model: The draft model: any target that offers `grow` and has the same units as the call's target.
        shape: The shape of the draft tree; default: a chain.
    """

    def __init__(self, model: Target, shape: Shape | None = None) -> None:
        self.model = model
        self.shape: Shape = shape if shape is not None else Chain()
        self.offers, self.needs = self.shape.offers, self.shape.needs

    def bind(self, target: Target) -> None:
        name, shape = type(self.model).__name__, type(self.shape).__name__
        lacking = ({"grow"} | (self.shape.offers & {"tree"})) - self.model.offers
        if lacking:
            raise ValueError(f"{name} does not offer {', '.join(sorted(lacking))}, so it cannot draft a {shape}")
        if self.model.vocab != target.vocab:
            raise ValueError(
                f"the draft model has {self.model.vocab} unit ids and the target {target.vocab}; "
                "a draft model must share the target's vocabulary"
            )
        if target.vocab is not None and self.shape.widest > target.vocab:
            raise ValueError(f"{shape} wants {self.shape.widest} siblings, and there are {target.vocab} unit ids")

    def width(self, k: int) -> int:
        return self.shape.width(k)

    def start(self, state: State, inputs: Any) -> DraftModelMemory:
        width = max(self.shape.fed(state.budget.k) + 1, CATCH_UP)
        started = self.model.start(inputs, state.limit, width)
        return DraftModelMemory(started.cache, self.shape, width, torch.zeros_like(state.emitted))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: DraftModelMemory = state.memory
        memory.scratch = None  # if the model fails, nothing of this round is committed
        levels = memory.shape.levels(min(k, self._context(state)))
        if levels < 1:
            return Draft.empty(state.root)
        if isinstance(self.model, LengthAware):
            self.model.synced(memory.cache, state.host_emitted)
        output, scored = self._catch_up(state, memory)
        feed = partial(self._feed, memory)
        draft, scratch, scored = grown(
            memory.shape, state, k, levels, noise, output, feed=feed, fed=scored, enough=_enough(memory.shape)
        )
        memory.scratch = scratch if scored else None
        return draft

    def observe(self, state: State, step: Step) -> None:
        memory: DraftModelMemory = state.memory
        if memory.scratch is not None:
            path, count = memory.scratch.follow(step)
            self.model.commit(memory.cache, path, count)
            memory.seen = memory.seen + count
            own = step.draft.nodes == memory.scratch.place.shape[1]
            memory.lag = 1 if own else step.draft.index.deepest + 1  # every node of its own with a child was fed
            memory.scratch = None
        else:
            memory.lag += step.draft.index.deepest + 1

    def _catch_up(self, state: State, memory: DraftModelMemory) -> tuple[TargetOutput, int]:
        """Feed the units that the cache lacks, and the root.

        Returns:
            The output after the root, one node; and the number of this round's nodes in the scratch: 1 for the root, or
            0 if units before it were committed, which invalidates the scratch (the root is then fed again with the
            first level).
        """
        lag = torch.where(state.done, 0, (state.emitted - 1 - memory.seen).clamp(min=0))
        most = self._longest(memory, lag)
        while most >= memory.width:
            lag = lag - self._known(state, memory, lag, memory.width)[1]
            most -= memory.width
        output, _ = self._known(state, memory, lag, most + 1)
        memory.lag = 0
        return (output.take(lag[:, None]), 0) if most else (output, 1)

    @staticmethod
    def _longest(memory: DraftModelMemory, lag: Tensor) -> int:
        """The largest `lag`; off the CPU, where reading it is a sync, an upper bound."""
        return int(lag.max()) if lag.device.type == "cpu" else memory.lag

    def _known(self, state: State, memory: DraftModelMemory, lag: Tensor, nodes: int) -> tuple[TargetOutput, Tensor]:
        """Feed `nodes` known units, beginning `lag [batch]` before the root; commit those before it, and count them."""
        order = torch.arange(nodes, device=lag.device)
        place = ((state.known - 1 - lag)[:, None] + order).clamp(max=state.history.shape[1] - 1)
        units, count = take_nodes(state.history, place), lag.clamp(max=nodes)
        output = self._feed(memory, Draft.chain(units[:, 1:]).rooted(units[:, 0], lag), 0)
        if nodes > 1:
            self.model.commit(memory.cache, order[1:].expand(state.rows, -1), count)
            memory.seen = memory.seen + count
        return output, count

    def _feed(self, memory: DraftModelMemory, draft: Draft, first: int) -> TargetOutput:
        """One pass of the draft model."""
        return self.model.verify(memory.cache, draft, first)

    def _context(self, state: State) -> int:
        """Levels that fit into the draft model's longest context, after the longest row."""
        context = self.model.context if isinstance(self.model, Bounded) else None
        if context is None:
            return state.limit
        longest = (
            max(n - pads for n, pads in zip(state.host_emitted, state.host_pads, strict=True)) + state.prompt_length
        )
        return max(0, context - longest)


def _enough(shape: Shape) -> Callable[[Level], bool] | None:
    """Whether no row's draft goes on, where drafts may end."""
    return shape.ended if isinstance(shape, Ending) and shape.ends else None
