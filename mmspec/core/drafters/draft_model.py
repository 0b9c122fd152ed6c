"""A draft model: a smaller model of the same units drafts a chain (arXiv 2211.17192, 2302.01318) or another tree.

The draft model is itself a `Target`. It grows the draft level by level in its cache's scratch (`Target.verify` from
`first` on), and commits the part that the rule accepted; so it never has to roll back, and recurrent models can draft,
too. Its cache may lag behind the call: known units that it was never fed (the last one of an accepted path, all units
of rounds without a draft) are fed as one chain that ends with the root, before the first level; this pass gives the
distribution at the root. Distributions pass through the call's warp, so that a draft's distribution is the one that it
was really drawn from.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded, LengthAware, RunsModel
from mmspec.core.compile.protocols import Capturable, InsideDrafts
from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.growing import LiveRows, Scratch, grown
from mmspec.core.drafters.shapes import Chain, Ending, Level, Shape
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Step, TargetOutput

CATCH_UP = 16
"""Least width of a draft model's pass: known units that its cache lacks are fed in passes of at least this width."""


@dataclass
class DraftModelMemory:
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

    everywhere = True

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
        most, room = self._bounds(state, k)
        levels = memory.shape.levels(most)
        if levels < 1:
            return Draft.empty(state.root)
        output, scored = self._begun(state, memory)
        feed, enough = partial(self._feed, memory), _enough(memory.shape)
        draft, scratch, scored = grown(
            memory.shape, state, k, levels, noise, output, feed=feed, fed=scored, enough=enough, room=room
        )
        memory.scratch = scratch if scored else None
        return draft if room is None else draft.within(room)

    def observe(self, state: State, step: Step) -> None:
        memory: DraftModelMemory = state.memory
        if memory.scratch is not None:
            memory.lag = 1 if memory.scratch.alone else step.draft.index.deepest + 1
            _commit(self.model, memory, step)
        else:
            memory.lag += step.draft.index.deepest + 1

    def renumber(self, state: State, nodes: Tensor) -> None:
        memory: DraftModelMemory = state.memory
        memory.scratch = None if memory.scratch is None else memory.scratch.renumbered(nodes)

    def inside(self, k: int, state: State) -> "DraftModelInside":
        assert isinstance(self.model, Capturable)
        return DraftModelInside(self.model, k, state)

    def fits_inside(self, state: State) -> bool:
        """Not where a host sync ends drafts, or the draft model's context; nor if a subclass drafts otherwise."""
        kind = type(self)
        own = (kind.propose, kind.observe, kind._feed) == (DraftModel.propose, DraftModel.observe, DraftModel._feed)
        return own and self._may_be_inside(state)

    def _may_be_inside(self, state: State) -> bool:
        """True if neither a host sync ends drafts, nor the draft model's context."""
        shape = self.shape
        if not isinstance(self.model, Capturable) or not isinstance(self.model, RunsModel):
            return False
        context = self.model.context if isinstance(self.model, Bounded) else None
        whole = state.prompt_length + state.limit + state.budget.k
        return _enough(shape) is None and (context is None or whole <= context)

    def _begun(self, state: State, memory: DraftModelMemory) -> tuple[TargetOutput, int]:
        """Feed the units that the cache lacks, and the root.

        Returns:
            The output after the root, one node; and the number of this round's nodes in the scratch: 1 for the root, or
            0 if units before it were committed, which invalidates the scratch (the root is then fed again with the
            first level).
        """
        lag, most = self.catch_up(state, memory, memory.width - 1)
        output, _ = fed_known(self.model, memory, state, lag, most + 1, partial(self._feed, memory))
        memory.lag = 0
        return (output.take(lag[:, None]), 0) if most else (output, 1)

    def catch_up(self, state: State, memory: DraftModelMemory, left: int) -> tuple[Tensor, int]:
        """Feed units that the cache lacks, until no row lacks more than `left` before the root.

        Returns:
            How many each row lacks then, `[batch]`; and the most, or an upper bound where reading it is a sync.
        """
        if isinstance(self.model, LengthAware):
            self.model.synced(memory.cache, state.host.emitted)
        lag = lag_of(memory, state)
        most = self._longest(memory, lag)
        while most > left:
            lag = lag - fed_known(self.model, memory, state, lag, memory.width, partial(self._feed, memory))[1]
            most = max(most - memory.width, 0)
        return lag, most

    @staticmethod
    def _longest(memory: DraftModelMemory, lag: Tensor) -> int:
        """The largest `lag`; off the CPU, where reading it is a sync, an upper bound."""
        return int(lag.max()) if lag.device.type == "cpu" else memory.lag

    def _feed(self, memory: DraftModelMemory, draft: Draft, first: int) -> TargetOutput:
        """One pass of the draft model."""
        return self.model.verify(memory.cache, draft, first)

    def _bounds(self, state: State, k: int) -> tuple[int, Tensor | None]:
        """Units that the row with most place may draft, at most `k`; and how deep each row may draft, `[batch]`, where
        that differs: a row's draft depends on no other row. A row without place is not fed any more.
        """
        left = self._left(state)
        going = [k] if left is None else [n for n, done in zip(left, state.host.done, strict=True) if not done]
        most = min(k, max(going, default=0))
        if left is None or min(going, default=most) >= most:
            return most, None
        memory, place = state.memory, on_device(left, state.root.device)
        memory.seen = torch.where(place > 0, memory.seen, state.emitted - 1)
        return most, torch.minimum(state.room, place.clamp(min=0))

    def _left(self, state: State) -> list[int] | None:
        """Units of every row that still fit into the draft model's longest context; None: it has none."""
        if not isinstance(self.model, Bounded) or self.model.context is None:
            return None
        free = self.model.context - state.prompt_length
        return [free - n + pads for n, pads in zip(state.host.emitted, state.host.pads, strict=True)]


class DraftModelInside(InsideDrafts):
    """The drafts of a draft model inside of captured rounds.

    A round leaves units to catch up with: the last one of an accepted path was not fed, and of a draft of one level
    nothing is kept. So the first pass of a draft is always as wide as these and the root.
    """

    def __init__(self, model: Capturable, k: int, state: State) -> None:
        assert isinstance(model, RunsModel)
        shape, cache = state.memory.shape, state.memory.cache
        self.model, self.k, self.levels, self.warp = model, k, shape.levels(k), state.warp
        self.parents, self.modules = shape.parents(k), (model.model,)
        self.key = type(model), model.model, model.capture_key(cache), shape

    @property
    def lag(self) -> int:
        """Most units before the root that a row's cache lacks."""
        return max(1 if self.levels > 1 else 2, self.longest)

    @property
    def nodes(self) -> int:
        """Nodes of the first pass of a draft."""
        return self.lag + 1

    def reserve(self, state: State) -> None:
        memory: DraftModelMemory = state.memory
        self._held = self.model.held(memory.cache, self.nodes)
        self._held.fall_back()  # whose passes have many shapes, and are not always compiled
        self._held.load(memory.cache)  # now its layers have their buffers
        with torch.inference_mode(False):
            self._seen = torch.zeros_like(memory.seen)
        self._memory = DraftModelMemory(self._held, memory.shape, memory.width, self._seen)

    def ready(self) -> AbstractContextManager[None]:
        return self.model.ready(self._held, self.nodes)

    def load(self, drafter: DraftModel, state: State) -> None:
        memory: DraftModelMemory = state.memory
        drafter.catch_up(state, memory, self.lag)
        memory.cache = self._held.load(memory.cache)
        self._seen.copy_(memory.seen)

    def unload(self, drafter: DraftModel, state: State) -> None:
        state.memory.seen, state.memory.lag = self._seen.clone(), self.lag

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        memory, feed = self._memory, partial(self.model.forward, self._held)
        lag = lag_of(memory, live)
        output, _ = fed_known(self.model, memory, live, lag, self.nodes, feed)
        rows, root = LiveRows(live, self.warp), output.take(lag[:, None])
        draft, scratch, fed = grown(memory.shape, rows, self.k, self.levels, noise, root, feed=feed, fed=0)
        memory.scratch = scratch if fed else None
        return draft

    def renumber(self, nodes: Tensor) -> None:
        scratch = self._memory.scratch
        self._memory.scratch = None if scratch is None else scratch.renumbered(nodes)

    def observe(self, live: Live, step: Step) -> None:
        memory = self._memory
        if memory.scratch is not None:
            _commit(self.model, memory, step)
        self._seen.copy_(memory.seen)
        memory.seen = self._seen


def lag_of(memory: DraftModelMemory, known: State | Live) -> Tensor:
    """Emitted units before the root that each row's cache lacks, `[batch]`."""
    return torch.where(known.done, 0, (known.emitted - 1 - memory.seen).clamp(min=0))


def fed_known(
    model: Target | Capturable,
    memory: DraftModelMemory,
    known: State | Live,
    lag: Tensor,
    nodes: int,
    feed: Callable[[Draft, int], TargetOutput],
    *,
    masks: int = 0,
    mask: int = 0,
) -> tuple[TargetOutput, Tensor]:
    """Feed `nodes` units, beginning `lag [batch]` before the root; commit those before it, and count them.

    Behind each row's root come so many of the unit `mask`, which stand for units that are not known.
    """
    order = torch.arange(nodes, device=lag.device)
    place = ((known.known - 1 - lag)[:, None] + order).clamp(max=known.history.shape[1] - 1)
    units, count = take_nodes(known.history, place), lag.clamp(max=nodes)
    if masks:
        units = torch.where(order <= lag[:, None], units, mask)
    output = feed(Draft.chain(units[:, 1:]).rooted(units[:, 0], lag + masks), 0)
    if nodes > 1:
        model.commit(memory.cache, order[1:].expand(len(lag), -1), count)
        memory.seen = memory.seen + count
    return output, count


def _commit(model: Target | Capturable, memory: DraftModelMemory, step: Step) -> None:
    """Keep what a round accepted of the scratch."""
    assert memory.scratch is not None
    path, count = memory.scratch.follow(step)
    model.commit(memory.cache, path, count)
    memory.seen, memory.scratch = memory.seen + count, None


def _enough(shape: Shape) -> Callable[[Level], bool] | None:
    """True if no row's draft goes on, where drafts may end."""
    return shape.ended if isinstance(shape, Ending) and shape.ends else None
