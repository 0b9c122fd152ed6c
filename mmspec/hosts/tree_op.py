"""What a plugin gives the host for a recurrent layer: a pass over a tree, and how a state follows the accepted path.

Both are pure. A pass leaves activations behind, one set a node; a commit rolls the one committed state over the kept
nodes from these, without a second pass and without a state per node. The cache calls both and is the only writer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.tree import TreeIndex


class Branches:
    """The tree of one pass, as recurrent operations ask about it; made once a pass, for all layers.

    Args:
        index: The tree. Parents stand before their children.
    """

    def __init__(self, index: TreeIndex) -> None:
        self.index = index
        self._windows: dict[int, Tensor] = {}

    @property
    def parent(self) -> Tensor:
        """`[batch, node]` int64, or `[1, node]` where all rows share one tree; -1 at the root."""
        return self.index.parent

    @property
    def ancestor(self) -> Tensor:
        """`[batch, node, node]` bool, or `[1, node, node]`: `[b, i, j]`: j is i or an ancestor of i."""
        return self.index.ancestor

    @cached_property
    def _sums(self) -> Tensor:
        return self.ancestor.double()

    def path_sums(self, x: Tensor) -> Tensor:
        """Sums of `x [batch, node, …]` over every node's path, itself included: float64.

        Decays are made of differences of such sums, and in float32 the difference of two long sums is mostly rounding.
        """
        sums: Tensor = self._sums.to(x.device) @ x.flatten(2).double()
        return sums.reshape(x.shape)

    def path_decay(self, total: Tensor) -> Tensor:
        """What is left at node i of what node j fed in: exp(total_i - total_j) if j is i or an ancestor, else 0.

        Args:
            total: `[batch, node, …]` float64: log-decays, summed over paths (`path_sums`).

        Returns:
            `[batch, node i, node j, …]` float32.
        """
        gap = (total[:, :, None] - total[:, None]).float()
        ancestor = self.ancestor.to(total.device)
        ancestor = ancestor.reshape(*ancestor.shape, *(1,) * (gap.dim() - 3))
        # Masked before the exponential: of nodes on two branches the difference may be large, and inf · 0 is no zero.
        return gap.masked_fill(~ancestor, float("-inf")).exp()

    def path_windows(self, width: int) -> Tensor:
        """The node itself and what stands before it on its path: `[batch, node, width]`, or `[1, …]`.

        -1 is the unit before the root, -2 the one before that, and so on.
        """
        if width not in self._windows:
            parent = self.parent
            steps = [torch.arange(parent.shape[1], device=parent.device).expand_as(parent)]
            for _ in range(width - 1):
                last = steps[-1]
                steps.append(torch.where(last >= 0, parent.gather(1, last.clamp(min=0)), last - 1))
            self._windows[width] = torch.stack(steps, 2)
        return self._windows[width]

    @cached_property
    def levels(self) -> list[tuple[Tensor, Tensor]]:
        """For every depth its nodes, and where in the level above their parents stand; for trees that all rows share.

        The root's parent is what there was before it: place 0 of a level of one.
        """
        assert len(self.parent) == 1, "rows have trees of their own"
        parents, place, levels = self.parent[0].tolist(), {-1: 0}, []
        level = [node for node, parent in enumerate(parents) if parent < 0]
        while level:
            hanging = [place[parents[node]] for node in level]
            levels.append((self._ids(level), self._ids(hanging)))
            place = {node: order for order, node in enumerate(level)}
            level = [node for node, parent in enumerate(parents) if parent in place]
        return levels

    def _ids(self, nodes: list[int]) -> Tensor:
        return torch.tensor(nodes, device=self.parent.device)


@dataclass(frozen=True)
class KeptNodes:
    """The nodes that a commit keeps.

    Attributes:
        nodes: `[batch, step]` int64: the root, then the accepted path; anything behind its end.
        count: `[batch]` int64: how many of them are kept; 0: the row's state stays.
    """

    nodes: Tensor
    count: Tensor

    @staticmethod
    def along(path: Tensor, count: Tensor) -> "KeptNodes":
        """From the arguments of `Target.commit`."""
        return KeptNodes(torch.nn.functional.pad(path.clamp(min=0), (1, 0)), count)

    @cached_property
    def mask(self) -> Tensor:
        """`[batch, step]` bool."""
        return torch.arange(self.nodes.shape[1], device=self.nodes.device) < self.count[:, None]

    def take(self, values: Tensor) -> Tensor:
        """`values [batch, node, …]` along the path: `[batch, step, …]`."""
        return take_nodes(values, self.nodes.to(values.device))

    def last(self, values: Tensor) -> Tensor:
        """`values [batch, node, …]` at the last kept node, 0 in rows that keep none: `[batch, …]`."""
        at, none = self._last
        found = take_nodes(values, at.to(values.device))[:, 0]
        return found.masked_fill(none.to(values.device).reshape(-1, *(1,) * (found.dim() - 1)), 0)

    def outside(self, nodes: int) -> Tensor:
        """Which of so many nodes are not kept: `[batch, node]` bool; found out once for all layers."""
        if nodes not in self._outside:
            each = self.nodes[..., None] == torch.arange(nodes, device=self.nodes.device)
            self._outside[nodes] = ~(each & self.mask[..., None]).any(1)
        return self._outside[nodes]

    @cached_property
    def _last(self) -> tuple[Tensor, Tensor]:
        """The last kept node `[batch, 1]`, any where there is none; and where that is."""
        return self.nodes.gather(1, (self.count - 1).clamp(min=0)[:, None]), self.count == 0

    @cached_property
    def _outside(self) -> dict[int, Tensor]:
        return {}


class TreeOp(Protocol):
    """A recurrent operation of a model's mixers.

    Attributes:
        kind: Which of transformers' states it folds: `conv` (the latest inputs) or `recurrent`.
    """

    kind: Literal["conv", "recurrent"]

    def forward(self, branches: Branches, state: Tensor | None, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The operation over all nodes of a tree.

        Args:
            branches: The tree.
            state: Committed, as transformers keeps it; None before the first commit: it is zero.
            *args: As the model's own function for many tokens is called.
            **kwargs: The same.

        Returns:
            What that function returns, and what the commit wants to know of every node.
        """
        ...

    def commit(self, state: Tensor | None, stash: Any, kept: KeptNodes, /) -> Tensor:
        """The state after the kept nodes, a tensor of its own.

        Args:
            state: As in the pass.
            stash: What the pass left behind.
            kept: The nodes.
        """
        ...
