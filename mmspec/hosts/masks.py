"""Attention masks of tree passes: a node sees committed units and its ancestors, within the model's own pattern.

transformers calls a mask function for every kind of layer and passes it the kind's own pattern (sliding window, chunk,
…), a predicate over two indices. The function here evaluates that predicate on *positions* (length plus depth) and not
on cache slots, and intersects it with the tree. So every pattern that transformers can express holds in a tree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from mmspec.core.once import once
from mmspec.hosts.traceable import Traceable

NAME = "mmspec"
Made = TypeVar("Made")


@dataclass
class PassGeometry:
    """The geometry of one pass over tree nodes, whose slots follow the committed units' slots."""

    length: Tensor  # `[batch]` int64: committed units
    # `[batch, node, all]` bool, or `[1, node, all]`: `[b, i, j]`: j is i or an ancestor of i. `node` counts the nodes
    # of the pass, which are the last ones of the draft; `all` counts the nodes of the draft.
    ancestor: Tensor
    depth: Tensor  # `[batch, all]` int64, or `[1, all]`: the depth of all nodes of the draft
    visible: int  # the number of slots that attention covers
    alone: bool = False  # whether every row has one node, which sees every visible slot
    holes: Tensor | None = None  # `[batch, visible]` bool: committed slots that are masked for every node; or None
    # Whether attention sums in float64: a node of a tree has gaps between the slots of its path, which change the order
    # of sums; rounded to the model's dtype, sums in float64 do not show it
    exact: bool = False
    # The places of a ring for every window whose layers keep one (`mmspec.hosts.slot_layer`).
    rings: Mapping[int, int] = field(default_factory=dict)
    # The places of the ring that this geometry is about, so that slots lie around it; 0: slots lie in order
    ring: int = 0
    _made: list[tuple[Any, tuple[Any, ...], Any]] = field(default_factory=list)
    _around: "dict[int, PassGeometry]" = field(default_factory=dict)

    @once
    def tree(self) -> Tensor:
        """`[batch, 1, node, visible]` bool: slots of committed units, of a node's ancestors and of the node itself."""
        rows, nodes = len(self.length), self.ancestor.shape[1]
        related = self.ancestor.expand(rows, -1, -1).gather(2, self._node[:, None].expand(-1, nodes, -1))
        return (self._committed[:, None] | (related & self._inside[:, None]))[:, None]

    @once
    def query(self) -> Tensor:
        """The position of every node of the pass: `[batch, node]`."""
        return self.length[:, None] + self.depth[:, -self.ancestor.shape[1] :]

    @once
    def past(self) -> Tensor:
        """The position of every node minus its number in the pass: `[node]`; of rows that differ, the least."""
        position = self.query.amin(0)
        return position - torch.arange(len(position), device=position.device)

    @once
    def key(self) -> Tensor:
        """The position of the unit or node in every slot: `[batch, visible]`."""
        drafted = self.length[:, None] + self.depth.expand(len(self.length), -1).gather(1, self._node)
        return torch.where(self._inside, drafted, self._slot.expand(len(self.length), -1))

    @once
    def _slot(self) -> Tensor:
        """The slot at every place that attention covers: `[1, visible]`, or `[batch, visible]` around a ring."""
        place = torch.arange(self.visible, device=self.length.device)[None]
        if not self.ring:
            return place
        return latest_slot(place, self.length[:, None] + self.depth.shape[1] - 1, self.ring)

    @once
    def _committed(self) -> Tensor:
        committed = self._slot < self.length[:, None]
        if self.ring:
            committed = committed & (self._slot >= 0)
        if self.holes is None:
            return committed
        here = self._slot.expand(len(self.length), -1).clamp(0, self.holes.shape[1] - 1)
        return committed & ~(self.holes.gather(1, here) if self.ring else self.holes)

    @once
    def _node(self) -> Tensor:
        """The id of the node in every slot, clamped to the nodes of the draft: `[batch, visible]`."""
        return self._relative.clamp(0, self.depth.shape[1] - 1)

    @once
    def _relative(self) -> Tensor:
        """The slot at every place, counted from the root's: `[batch, visible]`."""
        return self._slot - self.length[:, None]

    @once
    def _inside(self) -> Tensor:
        """`[batch, visible]` bool: slots of the draft's nodes."""
        return (self._relative >= 0) & (self._relative < self.depth.shape[1])

    def within(self, pattern: Callable[..., Tensor]) -> Tensor:
        """The tree mask intersected with a pattern of transformers: `[batch, 1, node, visible]` bool."""
        if pattern is causal_mask_function:  # ancestors and committed units are earlier positions anyway
            return self.tree
        batch = torch.arange(len(self.length), device=self.length.device)[:, None, None, None]
        head = torch.zeros_like(batch)
        return self.tree & pattern(batch, head, self.query[:, None, :, None], self.key[:, None, None, :])

    def around(self, window: int | None) -> "PassGeometry":
        """The geometry of the layers with a window: another one if their slots lie around a ring, and reach around."""
        ring = 0 if window is None else self.rings.get(window, 0)
        if not 0 < ring < self.visible:
            return self
        if ring not in self._around:
            self._around[ring] = replace(self, visible=ring, ring=ring, _made=[], _around={})
        return self._around[ring]

    def shared(self, make: Callable[..., Made], mask: Any, *form: Any) -> Made:
        """The result of `make(mask, *form)` for a mask of this pass; kept, because layers of one kind share it, unless
        the layer got a copy of the mask for its own device.
        """
        for known, known_form, made in self._made:
            if known is mask and known_form == form:
                return made
        made = make(mask, *form)
        if not isinstance(mask, Tensor) or mask.device == self.length.device:
            self._made.append((mask, form, made))
        return made


def added(mask: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """A mask as terms that are added to scores of a dtype, repeated for every query of a group: infinite where nothing
    is seen, but in half precision of a size of which cuDNN makes no NaN.
    """
    if mask.dtype == torch.bool:
        mask = mask.to(dtype).log_()  # of 1 and 0
        mask = mask if dtype.itemsize > 2 else mask.clamp_(min=-65504.0)
    mask = mask.to(torch.promote_types(mask.dtype, dtype))
    return mask.repeat(1, 1, group, 1) if group > 1 else mask


def latest_slot(place: Tensor, last: Tensor, ring: int) -> Tensor:
    """The latest slot up to `last` that lies at a place of a ring; below 0 if there was none."""
    return last - (last - place) % ring


current: Traceable[PassGeometry] = Traceable("mmspec_pass")  # the geometry of the pass that runs, or is traced, here


def tree_mask(mask_function: Callable[..., Tensor], local_size: int | None = None, **kwargs: Any) -> Tensor | None:
    """The mask function that transformers calls for every kind of layer; None if a node sees every slot."""
    geometry = current.get()
    assert geometry is not None, "the attention 'mmspec' is used outside a pass of mmspec"
    if geometry.alone and (mask_function is causal_mask_function or geometry.visible <= (local_size or 0)):
        return None
    return geometry.around(local_size).within(mask_function)


AttentionMaskInterface.register(NAME, tree_mask)
