"""Tree operations: how a plugin computes a recurrent layer over a tree and advances its state along the accepted path.

Both functions are pure. A pass returns activations of every node (the stash); a commit advances the one committed state
over the kept nodes from these, without a second pass and without a state per node. The cache calls both functions and
is the only one that writes states.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.once import known, once
from mmspec.core.transfer import on_device, widest
from mmspec.core.tree import TreeIndex


@known
def _levels(parents: tuple[int, ...], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    place, levels = {-1: 0}, []
    level = [node for node, parent in enumerate(parents) if parent < 0]
    while level:
        hanging = [place[parents[node]] for node in level]
        levels.append((on_device(level, device), on_device(hanging, device)))
        place = {node: order for order, node in enumerate(level)}
        level = [node for node, parent in enumerate(parents) if parent in place]
    return levels


class Branches:
    """The tree of one pass with the tables that recurrent operations need; all layers of a pass share one object.

    Parents precede their children. `dtype` is that of operations with states of kind `recurrent`; their results have
    their own. It is float64 in calls of one shape, where it is affordable: how a path is divided into passes changes
    the order of sums, and rounded to the model's dtype, sums in float64 do not show it. With `reading`, the pass reads
    a prompt, as the model's whole pass would; if not, its nodes are steps.
    """

    def __init__(self, index: TreeIndex, dtype: torch.dtype = torch.float32, reading: bool = False) -> None:
        self.index, self.dtype, self.reading = index, dtype, reading
        self._columns: dict[int, Tensor] = {}

    @staticmethod
    def of(index: TreeIndex, dtype: torch.dtype = torch.float32, reading: bool = False) -> "Branches":
        """The branches of a tree. A tree that all rows share has one object in all passes, so that tables are kept."""
        if index.listed is None:
            return Branches(index, dtype, reading)
        return _kept(index.listed, index.parent.device, dtype, reading)

    @property
    def parent(self) -> Tensor:
        """`[batch, node]` int64, or `[1, node]` where all rows share one tree; -1 at the root."""
        return self.index.parent

    @property
    def ancestor(self) -> Tensor:
        """`[batch, node, node]` bool, or `[1, node, node]`: `[b, i, j]`: j is i or an ancestor of i."""
        return self.index.ancestor

    @once
    def _sums(self) -> Tensor:
        return self.ancestor.to(widest(self.ancestor.device))

    @once
    def _apart(self) -> Tensor:
        return ~self.ancestor

    def path_sums(self, x: Tensor) -> Tensor:
        """Sums of `x [batch, node, …]` over every node's path from the root, itself included: the same shape.

        Decays are differences of such sums; in float32 the difference of two long sums is mostly rounding error, so the
        sums are float64. On a device without float64 they are float32, and the self-check says whether that suffices.
        """
        sums: Tensor = self._sums.to(x.device) @ x.flatten(2).to(widest(x.device))
        return sums.reshape(x.shape)

    def path_decay(self, total: Tensor) -> Tensor:
        """The decay from node j to node i, exp(total_i - total_j) if j is i or an ancestor of i, else 0: `[batch, node
        i, node j, …]` of `dtype`. `total [batch, node, …]` are log-decays summed over paths (`path_sums`).
        """
        gap = (total[:, :, None] - total[:, None]).to(self.dtype)
        apart = self._apart.to(total.device)
        apart = apart.reshape(*apart.shape, *(1,) * (gap.dim() - 3))
        # Masked before the exponential: between branches the difference may be large, and inf · 0 is not 0.
        return gap.masked_fill_(apart, float("-inf")).exp_()

    def columns(self, width: int) -> Tensor:
        """The window of every node, if a row's last `width` inputs before the root precede the nodes' inputs: columns
        `[batch, width, node]`, or `[1, …]`, of the node itself, of its parent, and so on; cached for all layers.
        """
        if width not in self._columns:
            parent = self.parent
            steps = [torch.arange(parent.shape[1], device=parent.device).expand_as(parent)]
            for _ in range(width - 1):  # -1 is the input before the root, -2 the one before that, and so on
                last = steps[-1]
                steps.append(torch.where(last >= 0, parent.gather(1, last.clamp(min=0)), last - 1))
            self._columns[width] = torch.stack(steps, 1) + width
        return self._columns[width]

    @once
    def levels(self) -> list[tuple[Tensor, Tensor]] | None:
        """For every depth its node ids and the places of their parents in the level above.

        The root's parent is place 0 of a level of one entry, the state before the root. None: rows have trees of their
        own, or the host would have to wait for the tree.
        """
        listed = self.index.listed
        readable = self.parent.device.type == "cpu" and not torch.compiler.is_compiling()
        if listed is None and len(self.parent) == 1 and readable:
            listed = tuple(self.parent[0].tolist())
        return None if listed is None else _levels(listed, self.parent.device)


@known
def _kept(parents: tuple[int, ...], device: torch.device, dtype: torch.dtype, reading: bool) -> Branches:
    return Branches(TreeIndex.static(parents, device), dtype, reading)


@dataclass(frozen=True)
class KeptNodes:
    """The nodes that a commit keeps."""

    nodes: Tensor  # `[batch, step]` int64: the root, then the accepted path; entries behind its end are arbitrary
    count: Tensor  # `[batch]` int64: how many of them are kept; with 0 the row's state stays

    @staticmethod
    def along(path: Tensor, count: Tensor) -> "KeptNodes":
        """The kept nodes for the arguments of `Target.commit`."""
        return KeptNodes(torch.nn.functional.pad(path.clamp(min=0), (1, 0)), count)

    @once
    def mask(self) -> Tensor:
        """`[batch, step]` bool: the entries of `nodes` that are kept."""
        return torch.arange(self.nodes.shape[1], device=self.nodes.device) < self.count[:, None]

    def take(self, values: Tensor) -> Tensor:
        """`values [batch, node, …]` along the path: `[batch, step, …]`."""
        return take_nodes(values, self.nodes.to(values.device))

    def last(self, values: Tensor) -> Tensor:
        """`values [batch, node, …]` at the last kept node: `[batch, …]`; 0 in rows that keep no node."""
        at, none = self._last
        found = take_nodes(values, at.to(values.device))[:, 0]
        return found.masked_fill(none.to(values.device).reshape(-1, *(1,) * (found.dim() - 1)), 0)

    def outside(self, nodes: int) -> Tensor:
        """The draft's nodes, of `nodes`, that are not kept: `[batch, node]` bool; cached for all layers."""
        if nodes not in self._outside:
            each = self.nodes[..., None] == torch.arange(nodes, device=self.nodes.device)
            self._outside[nodes] = ~(each & self.mask[..., None]).any(1)
        return self._outside[nodes]

    def columns(self, width: int) -> Tensor:
        """The columns `[batch, width]` of the last `width` inputs of every row, if the last ones before the root
        precede the nodes' inputs; cached for all layers.
        """
        if width not in self._columns:
            nodes = self.nodes + width
            before = torch.arange(width, device=nodes.device).expand(len(nodes), -1)
            # The first `count` inputs fall off.
            place = self.count[:, None] + torch.arange(width, device=nodes.device)
            self._columns[width] = torch.cat([before, nodes], 1).gather(1, place)
        return self._columns[width]

    @once
    def _columns(self) -> dict[int, Tensor]:
        return {}

    @once
    def _last(self) -> tuple[Tensor, Tensor]:
        """The last kept node `[batch, 1]`, and the rows that keep none `[batch]` bool, for which it is arbitrary."""
        return self.nodes.gather(1, (self.count - 1).clamp(min=0)[:, None]), self.count == 0

    @once
    def _outside(self) -> dict[int, Tensor]:
        return {}


class TreeOp(Protocol):
    """A recurrent operation of a model's mixers.

    Attributes:
        kind: The state of transformers that it advances: `conv` (the latest inputs) or `recurrent`.
    """

    kind: Literal["conv", "recurrent"]

    def forward(self, branches: Branches, state: Tensor | None, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The operation over all nodes of a tree.

        Args:
            branches: The tree, and the dtype to compute in.
            state: The committed state in transformers' layout; None before the first commit, which stands for zero. One
                of kind `recurrent` has the dtype `branches.dtype`, and so should what the commit returns.
            *args: The arguments of the model's own function for many tokens.
            **kwargs: Its keyword arguments.

        Returns:
            What that function returns, and the stash for the commit.
        """

    def commit(self, state: Tensor | None, stash: Any, kept: KeptNodes, /) -> Tensor:
        """The state after the kept nodes, as a new tensor.

        Args:
            state: The committed state, as in the pass.
            stash: The second result of `forward`.
            kept: The nodes that are kept.
        """
