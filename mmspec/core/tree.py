"""The tree of a draft: parents, depths, ancestors and sibling order, computed once per round.

Node 0 is the root. Parents precede children. All tensors are `[batch, node]`, or `[1, node]` if all rows have the same
tree, so that static trees are broadcast, not copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.once import known
from mmspec.core.transfer import moved


@dataclass(frozen=True)
class TreeIndex:
    """A topologically ordered tree."""

    parent: Tensor  # `[batch, node]` int64; -1 at the root
    depth: Tensor  # `[batch, node]` int64; 0 at the root
    ancestor: Tensor  # `[batch, node, node]` bool; `[b, i, j]`: j is i or one of its ancestors
    rank: Tensor  # `[batch, node]` int64; number of siblings that precede the node
    deepest: int  # upper bound of `depth`, known on the host
    widest: int  # upper bound of the number of siblings, known on the host
    is_chain: bool  # whether every node's parent is its predecessor
    # `parent` on the host, where all rows share one tree; None: each row has its own
    listed: tuple[int, ...] | None = None

    @staticmethod
    def chain(nodes: int, device: torch.device | str = "cpu") -> "TreeIndex":
        """The chain 0 ← 1 ← … ← `nodes - 1`, the same for all rows."""
        return _static(tuple(range(-1, nodes - 1)), torch.device(device))

    @staticmethod
    def static(parents: Sequence[int], device: torch.device | str = "cpu") -> "TreeIndex":
        """A tree that all rows share, from its parents (root first, -1)."""
        if not parents or parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(parents) if i):
            raise ValueError(f"parents must open with -1 and precede their children, got {list(parents)}")
        return _static(tuple(parents), torch.device(device))

    @staticmethod
    def dynamic(parent: Tensor, deepest: int | None = None) -> "TreeIndex":
        """One tree per row, without a host sync.

        Args:
            parent: `[batch, node]` int64; -1 at the root.
            deepest: Bound of the depth, if it is known to be less than the number of nodes.
        """
        nodes = parent.shape[1]
        deepest = nodes - 1 if deepest is None else min(deepest, nodes - 1)
        above = torch.arange(nodes, device=parent.device) == parent[..., None]
        reach = above | torch.eye(nodes, dtype=torch.bool, device=parent.device)
        for _ in range(max(1, deepest.bit_length())):
            reach = (reach.float() @ reach.float()) > 0
        earlier = torch.ones(nodes, nodes, dtype=torch.bool, device=parent.device).tril(-1)
        rank = ((parent[:, :, None] == parent[:, None]) & earlier).sum(-1)
        return TreeIndex(parent, reach.sum(-1) - 1, reach, rank, deepest, max(1, nodes - 1), nodes <= 2)

    def extended(self, parent: Tensor, deepest: int, widest: int) -> "TreeIndex":
        """The tree with further nodes, whose parents `[batch, n]` or `[1, n]` are among its own, and have no children
        yet; `deepest` and `widest` are bounds of the whole.
        """
        rows, n = max(len(parent), len(self.parent)), parent.shape[1]
        parent, before = parent.expand(rows, -1), self.ancestor.expand(rows, -1, -1)
        above = before.gather(1, parent[..., None].expand(-1, -1, self.nodes))
        itself = torch.eye(n, dtype=torch.bool, device=parent.device).expand(rows, -1, -1)
        ancestor = torch.cat([torch.nn.functional.pad(before, (0, n)), torch.cat([above, itself], 2)], 1)
        siblings = (parent[:, :, None] == parent[:, None]).tril(-1).sum(-1)
        new = parent, picked(self.depth, parent) + 1, siblings
        parent, depth, rank = (
            torch.cat([own.expand(rows, -1), more], 1)
            for own, more in zip((self.parent, self.depth, self.rank), new, strict=True)
        )
        return TreeIndex(parent, depth, ancestor, rank, deepest, widest, self.nodes + n <= 2)

    def padded(self, nodes: int) -> "TreeIndex":
        """The tree with further nodes behind its own, `nodes` in all: a longer chain, or more children of the root."""
        if self.is_chain:
            return TreeIndex.chain(nodes, self.parent.device)
        missing = nodes - self.nodes
        if self.listed is not None:
            return _static((*self.listed, *(0,) * missing), self.parent.device)
        order = torch.arange(nodes, device=self.parent.device)
        added = order[self.nodes :].expand(len(self.parent), -1)
        ancestor = torch.nn.functional.pad(self.ancestor, (0, missing, 0, missing))
        new = (order >= self.nodes)[:, None] & ((order == order[:, None]) | (order == 0))
        parent = torch.cat([self.parent, torch.zeros_like(added)], 1)
        depth = torch.cat([self.depth, torch.ones_like(added)], 1)
        widest = self.widest + missing  # behind all siblings, so that no rank is given twice
        rank = torch.cat([self.rank, self.widest + added - self.nodes], 1)
        return TreeIndex(parent, depth, ancestor | new, rank, max(1, self.deepest), widest, False)

    def repeated(self, times: int) -> "TreeIndex":
        """The tree of every physical row, where a logical row is so many of them, all rows one after the other."""
        if times == 1 or len(self.parent) == 1:
            return self
        return replace(
            self,
            parent=self.parent.repeat(times, 1),
            depth=self.depth.repeat(times, 1),
            ancestor=self.ancestor.repeat(times, 1, 1),
            rank=self.rank.repeat(times, 1),
        )

    @property
    def nodes(self) -> int:
        """Number of nodes, the root included."""
        return self.parent.shape[1]


@known
def _static(parents: tuple[int, ...], device: torch.device) -> TreeIndex:
    deepest, siblings = [0], [0] * len(parents)
    for above in parents[1:]:
        deepest.append(deepest[above] + 1)
        siblings[above] += 1
    parent, depth, ancestor, rank = _tensors(parents, device)
    return TreeIndex(
        parent,
        depth,
        ancestor,
        rank,
        deepest=max(deepest),
        widest=max(1, *siblings),
        is_chain=parents == tuple(range(-1, len(parents) - 1)),
        listed=parents,
    )


def _computed(parents: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    # Computed on the host, so that a new shape does not wait for the device.
    index = TreeIndex.dynamic(torch.tensor([parents], device="cpu"))
    return tuple(moved(part, device) for part in (index.parent, index.depth, index.ancestor, index.rank))


_tensors: Callable[..., tuple[Tensor, ...]] = torch.compiler.assume_constant_result(_computed)
"""`_computed`, which torch takes for constants of what it traces."""


def picked(values: Tensor, index: Tensor) -> Tensor:
    """Values `[batch, node]` (or `[1, node]`) at `index [batch, m]` (or `[1, m]`)."""
    rows = max(len(values), len(index))
    return values.expand(rows, -1).gather(1, index.expand(rows, -1))
