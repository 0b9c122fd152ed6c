"""Who sees whom: committed units, a node's ancestors, and what the model's own pattern leaves of them.

Windows, chunks and layer patterns are the model's business: transformers asks a mask function for every kind of layer
and hands it the kind's own pattern, a predicate over two indices. Ours evaluates that predicate on *positions* (length
plus depth), not on cache slots, and intersects it with the tree: so every pattern that transformers can express holds
in a tree, at the right distance.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

NAME = "mmspec"


@dataclass
class PassGeometry:
    """Geometry of one pass over tree nodes that are written behind the committed units.

    Attributes:
        length: `[batch]` int64 committed units.
        ancestor: `[batch, node, all]` bool (or `[1, …]`): `[b, i, j]`: j is i or an ancestor of i; the pass may be over
            the last nodes of a draft only.
        depth: `[batch, all]` int64 (or `[1, …]`) of all nodes of the draft.
        visible: Slots that attention covers.
        alone: Every row is one node that sees every visible slot.
        holes: `[batch, visible]` bool: committed slots that nobody may see; or None.
    """

    length: Tensor
    ancestor: Tensor
    depth: Tensor
    visible: int
    alone: bool = False
    holes: Tensor | None = None
    _repeated: list[tuple[Tensor, int, Tensor]] = field(default_factory=list)

    @cached_property
    def tree(self) -> Tensor:
        """`[batch, 1, node, visible]` bool: committed, or an ancestor. No row is empty: a node sees itself."""
        rows, nodes = len(self.length), self.ancestor.shape[1]
        related = self.ancestor.expand(rows, -1, -1).gather(2, self._node[:, None].expand(-1, nodes, -1))
        return (self._committed[:, None] | (related & self._inside[:, None]))[:, None]

    @cached_property
    def query(self) -> Tensor:
        """Position of every node of the pass: `[batch, node]`."""
        return self.length[:, None] + self.depth[:, -self.ancestor.shape[1] :]

    @cached_property
    def key(self) -> Tensor:
        """Position of what stands in every slot: `[batch, visible]`."""
        drafted = self.length[:, None] + self.depth.expand(len(self.length), -1).gather(1, self._node)
        return torch.where(self._inside, drafted, self._slot.expand(len(self.length), -1))

    @cached_property
    def _slot(self) -> Tensor:
        return torch.arange(self.visible, device=self.length.device)

    @cached_property
    def _committed(self) -> Tensor:
        committed = self._slot < self.length[:, None]
        return committed if self.holes is None else committed & ~self.holes

    @cached_property
    def _node(self) -> Tensor:
        """Node id that a slot would hold, clamped: `[batch, visible]`."""
        return (self._slot - self.length[:, None]).clamp(0, self.depth.shape[1] - 1)

    @cached_property
    def _inside(self) -> Tensor:
        relative = self._slot - self.length[:, None]
        return (relative >= 0) & (relative < self.depth.shape[1])

    def within(self, pattern: Callable[..., Tensor]) -> Tensor:
        """The tree under a pattern of transformers, evaluated on positions: `[batch, 1, node, visible]` bool."""
        if pattern is causal_mask_function:  # what a node may see lies before it anyway
            return self.tree
        batch = torch.arange(len(self.length), device=self.length.device)[:, None, None, None]
        head = torch.zeros_like(batch)
        return self.tree & pattern(batch, head, self.query[:, None, :, None], self.key[:, None, None, :])

    def repeated(self, mask: Tensor, group: int) -> Tensor:
        """A mask of this pass for every query of a group; the layers of one kind share it, so it is made once."""
        for made, size, result in self._repeated:
            if made is mask and size == group:
                return result
        self._repeated.append((mask, group, mask.repeat(1, 1, group, 1)))
        return self._repeated[-1][2]


current: ContextVar[PassGeometry | None] = ContextVar("mmspec_pass", default=None)


def tree_mask(mask_function: Callable[..., Tensor], local_size: int | None = None, **kwargs: Any) -> Tensor | None:
    """What transformers calls for every kind of layer of a pass; None where a node sees everything."""
    geometry = current.get()
    assert geometry is not None, "the attention 'mmspec' is used outside a pass of mmspec"
    if geometry.alone and (mask_function is causal_mask_function or geometry.visible <= (local_size or 0)):
        return None
    return geometry.within(mask_function)


AttentionMaskInterface.register(NAME, tree_mask)
