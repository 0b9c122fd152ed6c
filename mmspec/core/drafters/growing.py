"""The loop in which a draft model grows a tree, level by level.

The shape draws the children of the nodes that were scored last, and chooses which of them the draft model is fed next.
Distributions pass through the call's warp, so that a draft's distribution is the one that it was really drawn from.
The tree has two numberings: all drafted nodes, of which the rule accepts some, and the ones that the draft model
was fed, of which it commits the accepted ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Distribution, take_nodes
from mmspec.core.drafters.shapes.shape import Frontier, Level, Shape
from mmspec.core.history_processors import Prefix
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise, Noise, RaceNoise, SpreadNoise
from mmspec.core.tree import TreeIndex, picked
from mmspec.core.types import Draft, Part, Step, TargetOutput
from mmspec.core.warp import Warp


class Rows(Protocol):
    """The part of a call's rows that drafting reads: `mmspec.core.state.State` has it, and `LiveRows`."""

    @property
    def root(self) -> Tensor:
        """`[batch, *unit]`: the last known unit."""

    @property
    def room(self) -> Tensor:
        """`[batch]`: how deep each row may draft."""

    @property
    def warp(self) -> Warp:
        """Turns scores into distributions."""

    @property
    def prefix(self) -> Prefix:
        """The known units."""


@dataclass(frozen=True)
class LiveRows:
    """The rows of a captured round, for drafts that are made inside of it."""

    live: Live
    warp: Warp

    @property
    def root(self) -> Tensor:
        return self.live.root

    @property
    def room(self) -> Tensor:
        return self.live.room

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.live.history, (), self.live.emitted)  # element-wise processors read no ids


@dataclass(frozen=True)
class Scratch:
    """The nodes in the scratch of the draft model's cache after a round's last pass."""

    fed: Draft  # the nodes that were fed since the last commit, rooted
    place: Tensor  # index in `fed` of each node of the rooted draft, or -1: `[batch, node]` or `[1, node]`
    alone: bool = True  # whether the draft is the draft model's alone, so that every node with a child was fed

    def follow(self, step: Step) -> tuple[Tensor, Tensor]:
        """The accepted path as nodes of `fed`, as far as it was fed: the arguments of `Target.commit`.

        The draft may be padded. A path is no longer than what was fed: behind it, the cache may have no slots.
        """
        path, others = step.verdict.path[:, : self.fed.nodes - 1], step.draft.nodes - self.place.shape[1]
        place = picked(torch.nn.functional.pad(self.place, (0, others), value=-1), path.clamp(min=0))
        was_fed = ((path >= 0) & (place > 0)).cumprod(1)
        return torch.where(was_fed > 0, place, -1), torch.minimum(step.count, was_fed.sum(1) + 1)

    def renumbered(self, nodes: Tensor) -> "Scratch":
        """The same for a draft of `nodes [batch, n]` of these, the root not counted; larger ids are not these."""
        own = self.place[:, 1:]
        place = torch.where(nodes < own.shape[1], picked(own, nodes.clamp(max=own.shape[1] - 1)), -1)
        return replace(self, place=torch.nn.functional.pad(place, (1, 0)), alone=False)


class Growth:
    """Collects a draft's levels below roots `[batch, *unit]`, in rows that may draft as deep as `room [batch]`."""

    def __init__(self, shape: Shape, k: int, root: Tensor, room: Tensor) -> None:
        self.shape, self.k = shape, k
        self.root, self.room = root, room
        self.fed = Draft.alone(root)
        self.levels: list[Level] = []
        # Of the frontier: scores, ids among drafted nodes, the first node's id among fed nodes; -1 is the root.
        self.score = torch.zeros(len(root), 1, dtype=torch.float32, device=root.device)
        self._ids = torch.full((1, 1), -1, dtype=torch.int64, device=root.device)
        self._first = -1
        # Of every level: parents among drafted nodes, and places among fed nodes.
        self._parents: list[Tensor] = []
        self._places: list[Tensor] = []

    @property
    def frontier(self) -> int:
        """Number of nodes of the frontier."""
        return self.score.shape[1]

    @property
    def nodes(self) -> int:
        """Number of drafted nodes so far, and the root."""
        return 1 + sum(level.units.shape[1] for level in self.levels)

    def add(self, level: Level) -> None:
        """Add the children of the frontier."""
        self._parents.append(picked(self._ids, level.parent))
        self._places.append(torch.full_like(level.parent, -1))
        self.levels.append(level)

    def feed(self) -> Draft:
        """Make the last level the frontier. Returns all nodes that the draft model has to be fed by then, rooted."""
        level, fed = self.levels[-1], self.fed.nodes
        n, places = level.units.shape[1], level.frontier
        parents, units, valid, self.score = level.parent, level.units, level.valid, level.score
        if places is None:
            places = torch.arange(n, device=self.root.device)[None]
            self._places[-1] = places + fed
        else:
            self._places[-1] = _numbered(places, n, fed)
            parents = picked(parents, places)
            units, valid, self.score = (take_nodes(each, places) for each in (units, valid, self.score))
        self._ids = places + self.nodes - 1 - n
        self.fed = self._with(units, parents + self._first + 1, valid)
        self._first = fed - 1
        return self.fed

    def _with(self, units: Tensor, parents: Tensor, valid: Tensor) -> Draft:
        """The nodes that were fed, and more of them, whose `parents [batch, n]` or `[1, n]` are among those."""
        before, static = self.fed, self.shape.parents(self.k)
        if static is None:
            index = before.index.extended(parents, len(self.levels), self.shape.widest)
        else:
            own = static[: before.nodes - 1 + units.shape[1]]
            index = TreeIndex.static([-1, *(parent + 1 for parent in own)], units.device)
        new = Draft(units, index, valid).apart(self.root)
        inside = index.depth[:, before.nodes :] <= self.room[:, None]
        valid = new.valid & inside & picked(before.valid, parents)
        return Draft(torch.cat([before.units, new.units], 1), index, torch.cat([before.valid, valid], 1))

    def finish(self) -> tuple[Draft, Scratch]:
        """The draft, and where its nodes are in the draft model's scratch."""
        parts = zip(*((x.units, x.score, x.valid) for x in self.levels), strict=True)
        units, score, valid = (torch.cat(part, 1) for part in parts)
        parents, places = _joined(self._parents), _joined(self._places)
        distributions = [level.distribution for level in self.levels if level.distribution is not None]
        distribution = type(distributions[0]).cat(distributions) if distributions else None
        chosen = self.shape.choose(score)
        if chosen is not None:
            assert distribution is None or "q" in self.shape.offers, "nodes chosen by their own unit are point masses"
            distribution = None if distribution is None else distribution.take(chosen)
            units, score, valid = (take_nodes(x, chosen) for x in (units, score, valid))
            parents, places = renumbered(parents, chosen), picked(places, chosen)
        draft = replace(self._tree(units, parents, valid), distribution=distribution, score=score)
        return draft, Scratch(self.fed, torch.nn.functional.pad(places, (1, 0), value=0))

    def _tree(self, units: Tensor, parents: Tensor, valid: Tensor) -> Draft:
        static = self.shape.parents(self.k)
        if static is not None:
            return Draft.tree(units, static[: units.shape[1]], valid=valid)
        draft = Draft.tree(units, parents.expand(units.shape[:2]), valid=valid)
        # Rules and noise do work per depth and per sibling, so tight bounds save time.
        bounds = replace(draft.index, deepest=min(len(self.levels), units.shape[1]), widest=self.shape.widest)
        return replace(draft, index=bounds)


def grown(
    shape: Shape,
    rows: Rows,
    k: int,
    levels: int,
    noise: DraftNoise,
    output: TargetOutput,
    *,
    feed: Callable[[Draft, int], TargetOutput],
    fed: int = 1,
    enough: Callable[[Level], bool] | None = None,
    room: Tensor | None = None,
) -> tuple[Draft, Scratch, int]:
    """Grow a draft of `levels` levels, at least one.

    `output` is the draft model's after the root, one node. `fed` is how many nodes of this round are in its scratch: 1
    for the root, or 0, and it is fed again. `feed` runs one pass of the draft model: the output at the nodes of a
    rooted draft from an index on; those before it were fed since the last commit. `enough` is asked behind every level
    whether it is the last one: a host sync, which saves passes. `room [batch]` is how deep the draft model may be fed,
    if that is less than the rows' own.

    Returns:
        The draft; where its nodes are in the scratch; and the number of nodes there, the root included.
    """
    growth = Growth(shape, k, rows.root, rows.room if room is None else room)
    carried = None
    for depth in range(1, levels + 1):
        greedy = output.logits is not None and not rows.warp.sample
        wanted = not (greedy or noise.shared)
        if wanted or not rows.warp.reads_values(output):
            output = output.whole()
        distribution = warped(rows, output, growth.fed, growth.frontier)
        drawn, part = noise.level(depth, growth.nodes, growth.frontier), output.part
        if part is not None and isinstance(drawn, SpreadNoise):
            drawn = replace(drawn, noise=PartNoise(drawn.noise, part))
        frontier = Frontier(distribution, drawn, growth.score, greedy, wanted, carried, output.auxiliary)
        level = shape.level(frontier, depth)
        growth.add(level if part is None else replace(level, units=part.ids[level.units]))
        carried = level.carried
        if enough is not None and enough(level):
            break
        if depth < levels:
            output = feed(growth.feed(), fed)
            fed, output = growth.fed.nodes, _last(output, growth.frontier)
    return *growth.finish(), fed


def warped(rows: Rows, output: TargetOutput, fed: Draft, nodes: int) -> Distribution:
    """Distributions at the last `nodes` nodes that were fed; of what `output` scores, also if the call is greedy."""
    if output.distribution is not None:
        return output.distribution
    return Categorical.of_logits(rows.warp.logits(output, fed, rows.prefix, slice(fed.nodes - nodes, None))[0])


@dataclass(frozen=True)
class PartNoise(RaceNoise):
    """Noise by position for some units: the numbers that they have among all."""

    noise: Noise
    part: Part
    name, advice = "noise for some units", "draw from distributions over these"

    def at(self, index: Tensor) -> "PartNoise":
        return replace(self, noise=self.noise.at(index))

    def exponential(self, size: int) -> Tensor:
        return self.noise.exponential(self.part.vocab).index_select(-1, self.part.ids)


def _last(output: TargetOutput, nodes: int) -> TargetOutput:
    """The output at the last `nodes` nodes of a pass."""
    values = output.logits if output.distribution is None else output.distribution.confidence()
    assert values is not None
    scored = values.shape[1]
    return output if scored == nodes else output.take(torch.arange(scored - nodes, scored, device=values.device)[None])


def renumbered(parents: Tensor, chosen: Tensor) -> Tensor:
    """The parents `[batch, n]` of the nodes `chosen [batch, n]` alone, among these; -1 is the root."""
    new = _numbered(chosen, parents.shape[1], 0)
    parents = picked(parents, chosen)
    return torch.where(parents < 0, -1, new.gather(1, parents.clamp(min=0)))


def _numbered(places: Tensor, size: int, first: int) -> Tensor:
    """`[batch, size]`: `first`, `first + 1`, … at `places [batch, w]`, -1 elsewhere."""
    order = torch.arange(first, first + places.shape[1], device=places.device).expand_as(places)
    return torch.full((len(places), size), -1, device=places.device).scatter(1, places, order)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Join parts along the nodes; parts `[1, n]`, for all rows, are expanded if others are `[batch, n]`."""
    rows = max(map(len, parts))
    return torch.cat([part.expand(rows, *part.shape[1:]) for part in parts], 1)
