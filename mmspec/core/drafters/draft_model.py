"""A smaller model of the same units as drafter: a chain (arXiv 2211.17192, 2302.01318), or any other shape of tree.

The small model is a target of its own. It grows the draft level by level in its scratch (`Target.verify` from `first`
on), commits what the rule accepted of it, and so never has to forget: recurrent models draft, too. Its cache may lag
behind the call's: units that it was never fed (the last one of an accepted path, whatever came in rounds without a
draft) go in as one chain with the root before the first level, and that pass gives the distribution at the root.
Distributions pass through the call's own warp, so that a draft's distribution is the one it was really drawn from.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded
from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.growth import Growth, Scratch
from mmspec.core.drafters.shapes import Chain, Frontier, Shape
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores, Step, TargetOutput

CATCH_UP = 16
"""Nodes of a small model's pass at least: how many known units that it lacks go in at once."""


@dataclass
class Memory:
    """What the drafter knows of a call.

    Attributes:
        cache: The small model's cache.
        width: Nodes that a pass may have.
        seen: `[batch]` int64: emitted units in the cache.
        lag: Most emitted units before the root that any row's cache lacks, on the host.
        scratch: What the proposal at hand left in the cache, root included; None if there is nothing to keep.
    """

    cache: Any
    width: int
    seen: Tensor
    lag: int = 0
    scratch: Scratch | None = None


class DraftModel:
    """Drafts with a smaller target.

    Args:
        model: Any target that offers `grow` and whose units are the larger one's.
        shape: Which nodes a draft has; default: a chain.
    """

    def __init__(self, model: Target, shape: Shape | None = None) -> None:
        self.model = model
        self.shape: Shape = shape if shape is not None else Chain()
        self.offers, self.needs = self.shape.offers, self.shape.needs
        self._width = 0

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
        self._width = max(self.shape.fed(k) + 1, CATCH_UP)  # of the calls that now begin
        return self.shape.width(k)

    def start(self, state: State, inputs: Any) -> Memory:
        started = self.model.start(inputs, state.limit, self._width)
        return Memory(started.cache, self._width, torch.zeros_like(state.emitted))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: Memory = state.memory
        memory.scratch = None  # should the model fail, nothing is kept
        levels = self.shape.levels(min(k, self._context(state)))
        if levels < 1:
            return Draft.empty(state.root)
        growth = Growth(self.shape, k, state.root, state.room)
        output, scored = self._catch_up(state, memory)
        carried = None
        for depth in range(1, levels + 1):
            distribution = self._warp(state, output, growth.fed, growth.frontier).distribution
            greedy = output.logits is not None and not state.warp.sample
            drawn = noise.level(depth, growth.nodes, growth.frontier)
            frontier = Frontier(distribution, drawn, growth.score, greedy, not (greedy or noise.shared), carried)
            level = self.shape.level(frontier, depth)
            growth.add(level)
            carried = level.carried
            if depth < levels:
                output = self._feed(memory, growth.feed(), scored)
                scored, output = growth.fed.nodes, _last(output, growth.frontier)
        draft, scratch = growth.finish()
        memory.scratch = scratch if scored else None
        return draft

    def observe(self, state: State, step: Step) -> None:
        memory: Memory = state.memory
        if memory.scratch is not None:
            path, count = memory.scratch.follow(step)
            self.model.commit(memory.cache, path, count)
            memory.seen = memory.seen + count
            memory.lag, memory.scratch = 1, None  # a node with an accepted child was fed
        else:
            memory.lag += step.draft.index.deepest + 1

    def _catch_up(self, state: State, memory: Memory) -> tuple[TargetOutput, int]:
        """Feed what the cache lacks, and the root. Returns the scores after the root, one node.

        Also returns how many nodes of this round's draft are in the scratch now: the root, unless the commit of what
        came before it made its place void; it then goes in again with the first level.
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
    def _longest(memory: Memory, lag: Tensor) -> int:
        """The largest `lag`: on the CPU reading it costs nothing, elsewhere a bound must do."""
        return int(lag.max()) if lag.device.type == "cpu" else memory.lag

    def _known(self, state: State, memory: Memory, lag: Tensor, nodes: int) -> tuple[TargetOutput, Tensor]:
        """Feed `nodes` known units, from `lag [batch]` before the root on, and keep those before it: `[batch]` many."""
        order = torch.arange(nodes, device=lag.device)
        place = ((state.known - 1 - lag)[:, None] + order).clamp(max=state.history.shape[1] - 1)
        units, count = take_nodes(state.history, place), lag.clamp(max=nodes)
        output = self._feed(memory, Draft.chain(units[:, 1:]).rooted(units[:, 0], lag), 0)
        if nodes > 1:
            self.model.commit(memory.cache, order[1:].expand(state.rows, -1), count)
            memory.seen = memory.seen + count
        return output, count

    def _feed(self, memory: Memory, draft: Draft, first: int) -> TargetOutput:
        """One pass of the small model."""
        return self.model.verify(memory.cache, draft, first)

    def _context(self, state: State) -> int:
        """Levels that fit what the small model was made for, behind the longest row."""
        context = self.model.context if isinstance(self.model, Bounded) else None
        if context is None:
            return state.limit
        longest = max(n - pads for n, pads in zip(state.host_emitted, state.host_pads, strict=True)) + state.given
        return max(0, context - longest)

    @staticmethod
    def _warp(state: State, output: TargetOutput, fed: Draft, nodes: int) -> Scores:
        """Distributions of the last `nodes` nodes that were fed; of all units, also where the call is greedy."""
        return replace(state.warp, sample=True)(output, fed, state.prefix, slice(fed.nodes - nodes, None))


def _last(output: TargetOutput, nodes: int) -> TargetOutput:
    """The last `nodes` nodes of a pass."""
    values = output.logits if output.logits is not None else output.distribution.confidence()  # type: ignore[union-attr]
    scored = values.shape[1]
    return output if scored == nodes else output.take(torch.arange(scored - nodes, scored, device=values.device)[None])
