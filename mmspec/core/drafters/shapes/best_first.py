"""Best-first trees, grown level by level: which nodes can have a descendant among the best of all.

A heap would take the best candidate again and again. Values never increase along a path, so that expanding, at every
level, the nodes whose children can be among the best so far gives the heap's tree in one pass a level.
"""

import torch
from torch import Tensor

from mmspec.core.drafters.shapes.siblings import best_nodes


class BestFirst:
    """The common part of shapes that expand the most promising nodes of each level and verify the best candidates."""

    children: int  # most children of a node
    nodes: int  # nodes that are verified

    @property
    def _most(self) -> int:
        """Most nodes expanded per level."""
        return self.nodes

    @property
    def widest(self) -> int:
        return self.children

    def levels(self, k: int) -> int:
        return k

    def width(self, k: int) -> int:
        return min(self.nodes, self.children * sum(expanded(k, self._most, self.children)))

    def fed(self, k: int) -> int:
        return sum(expanded(k, self._most, self.children)[1:])

    def parents(self, k: int) -> tuple[int, ...] | None:
        return None

    def choose(self, score: Tensor) -> Tensor | None:
        return best_nodes(score, self.nodes)


def expanded(k: int, most: int, children: int) -> list[int]:
    """Most nodes that get children at each of `k` levels, beginning with the root: at most `most`."""
    sizes = [1] if k else []
    while len(sizes) < k:
        sizes.append(min(most, sizes[-1] * children))
    return sizes


def best_so_far(seen: Tensor | None, value: Tensor, nodes: int) -> Tensor:
    """The `nodes` largest values of all levels, `[batch, nodes]`, descending; fewer where there are fewer candidates.

    `seen` is the result at the level before, and this level's candidates have the values `value [batch, n]`.
    """
    values = value if seen is None else torch.cat([seen, value], 1)
    return values.topk(min(nodes, values.shape[1]), -1).values


def promising(value: Tensor, best: Tensor, nodes: int) -> int:
    """The nodes of a level that get children in the row that needs most; a child is worth at most `value [batch, n]`.

    Off the CPU, and where drafts are compiled, this is an upper bound: what is grown too much is not chosen.
    """
    most = min(nodes, value.shape[1])
    if value.device.type != "cpu" or torch.compiler.is_compiling():  # counting would be a sync, or a changing shape
        return most
    least = best[:, -1:] if best.shape[1] == nodes else torch.full_like(best[:, -1:], -torch.inf)
    return min(most, max(1, int((value >= least).sum(1).max())))
