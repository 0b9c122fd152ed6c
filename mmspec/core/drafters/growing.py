"""The loop in which a draft model grows a tree, level by level.

The shape draws the children of the nodes that were scored last, and chooses which of them the draft model is fed next.
Distributions pass through the call's warp, so that a draft's distribution is the one that it was really drawn from.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.drafters.growth import Growth, Scratch
from mmspec.core.drafters.shapes import Frontier, Level, Shape
from mmspec.core.history_processors import Prefix
from mmspec.core.noise import DraftNoise
from mmspec.core.types import Draft, Scores, TargetOutput
from mmspec.core.warp import Warp


class Rows(Protocol):
    """What drafting reads of a call's rows: `mmspec.core.state.State` has it, and so do buffers of captured drafts."""

    @property
    def root(self) -> Tensor:
        """`[batch, *unit]`: the last known unit."""
        ...

    @property
    def room(self) -> Tensor:
        """`[batch]`: how deep each row may draft."""
        ...

    @property
    def warp(self) -> Warp:
        """Turns scores into distributions."""
        ...

    @property
    def prefix(self) -> Prefix:
        """The known units."""
        ...


def grown(
    shape: Shape,
    rows: Rows,
    k: int,
    levels: int,
    noise: DraftNoise,
    output: TargetOutput,
    fed: int,
    feed: Callable[[Draft, int], TargetOutput],
    enough: Callable[[Level], bool] | None = None,
) -> tuple[Draft, Scratch, int]:
    """Grow a draft of at least one level.

    Args:
        shape: Which nodes it has.
        rows: The rows of the call.
        k: Budget of the round.
        levels: Number of levels.
        noise: What sampled drafts must use.
        output: The draft model's output after the root, one node.
        fed: Nodes of this round in the draft model's scratch: 1 for the root, or 0, and it is fed again.
        feed: One pass of the draft model: the output at the nodes of a rooted draft from an index on; those before it
            were fed since the last commit.
        enough: Asked behind every level: whether it is the last one. That is a host sync, which saves passes.

    Returns:
        The draft; where its nodes are in the scratch; and the number of nodes there, the root included.
    """
    growth = Growth(shape, k, rows.root, rows.room)
    carried = None
    for depth in range(1, levels + 1):
        distribution = warped(rows, output, growth.fed, growth.frontier).distribution
        greedy = output.logits is not None and not rows.warp.sample
        drawn = noise.level(depth, growth.nodes, growth.frontier)
        wanted = not (greedy or noise.shared)
        frontier = Frontier(distribution, drawn, growth.score, greedy, wanted, carried, output.auxiliary)
        level = shape.level(frontier, depth)
        growth.add(level)
        carried = level.carried
        if enough is not None and enough(level):
            break
        if depth < levels:
            output = feed(growth.feed(), fed)
            fed, output = growth.fed.nodes, _last(output, growth.frontier)
    return *growth.finish(), fed


def warped(rows: Rows, output: TargetOutput, fed: Draft, nodes: int) -> Scores:
    """Distributions at the last `nodes` nodes that were fed; over all units, also if the call is greedy."""
    return replace(rows.warp, sample=True)(output, fed, rows.prefix, slice(fed.nodes - nodes, None))


def _last(output: TargetOutput, nodes: int) -> TargetOutput:
    """The output at the last `nodes` nodes of a pass."""
    values = output.logits if output.distribution is None else output.distribution.confidence()
    assert values is not None
    scored = values.shape[1]
    return output if scored == nodes else output.take(torch.arange(scored - nodes, scored, device=values.device)[None])
