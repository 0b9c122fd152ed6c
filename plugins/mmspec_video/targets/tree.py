"""The tree of frames that were made since the last commit: the root's frame, and those of guessed actions below it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes, where_nodes
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec_video.models.keys import Pair, select_frames


@dataclass
class FrameTree:
    """A tree of frames; node 0 is the root's.

    Attributes:
        units: `[row, node]` int64: the actions.
        parent: `[row, node]` int64, -1 at the root.
        lineage: `[row, node, depth]` int64: the nodes from the root to this one; later entries have no meaning.
        frames: `[row, node, channel, height, width]`, 0 where no frame is available.
        available: `[row, node]` bool: the frame was made.
        keyed: `[row, node]` bool: the frame's keys were computed, too.
        keys: Keys and values of all nodes, layer by layer: `[row, node, cell, head, width]`; None: none were computed.
        root: `[row]` int64: the node that is the root now; -1: the root's frame is not in the tree.
    """

    units: Tensor
    parent: Tensor
    lineage: Tensor
    frames: Tensor
    available: Tensor
    keyed: Tensor
    keys: Sequence[Pair] | None
    root: Tensor

    @property
    def rooted(self) -> Tensor:
        """Whether the root's frame is available: `[row]` bool."""
        return self.available.gather(1, self.root[:, None].clamp(min=0))[:, 0] & (self.root >= 0)

    @classmethod
    def of(cls, units: Tensor, index: TreeIndex, shape: Sequence[int], like: Tensor) -> "FrameTree":
        """A tree without frames; they will have shape `shape`, and dtype and device of `like`."""
        rows, nodes = units.shape
        parent = index.parent.expand(rows, -1)
        lineage = torch.zeros(rows, nodes, index.deepest + 1, dtype=torch.int64, device=units.device)
        own = torch.arange(nodes, device=units.device).expand(rows, -1)
        for depth in range(1, index.deepest + 1):
            above = take_nodes(lineage, parent.clamp(min=0))
            above[..., depth] = own
            lineage = where_nodes((index.depth == depth).expand(rows, -1), above, lineage)
        nothing = torch.zeros_like(units, dtype=torch.bool)
        frames = like.new_zeros(rows, nodes, *shape)
        return cls(units, parent, lineage, frames, nothing, nothing.clone(), None, torch.zeros_like(units[:, 0]))

    def reusing(self, old: "FrameTree | None", index: TreeIndex) -> "FrameTree":
        """This tree (`index`) with the frames and keys that `old` has for the same actions."""
        if old is None:
            return self
        same = self._same(old, index)
        found, at = same >= 0, same.clamp(min=0)
        keys = None if old.keys is None else select_frames(old.keys, at)
        return replace(
            self,
            frames=where_nodes(found, take_nodes(old.frames, at), self.frames),
            available=found & old.available.gather(1, at),
            keyed=found & old.keyed.gather(1, at),
            keys=keys,
        )

    def _same(self, old: "FrameTree", index: TreeIndex) -> Tensor:
        """`[row, node]`: the old node with the same path of actions; -1: none."""
        same = torch.where(index.depth == 0, old.root[:, None], -1)
        for depth in range(1, index.deepest + 1):
            above = same.gather(1, self.parent.clamp(min=0))[..., None]
            equal = (old.parent[:, None] == above) & (above >= 0) & old.available[:, None]
            equal = equal & (old.units[:, None] == self.units[..., None])  # [row, node, old node]
            found = torch.where(equal.any(-1), equal.int().argmax(-1), -1)
            same = torch.where(index.depth == depth, found, same)
        return same

    def path(self, nodes: Tensor, depth: int) -> Tensor:
        """The ancestors `[row, m, depth]` of `nodes [row, m]` at one depth, the root first."""
        return take_nodes(self.lineage, nodes)[..., :depth]

    def put(self, nodes: Tensor, frames: Tensor, new: Tensor) -> None:
        """Store frames `[row, m, …]` of `nodes [row, m]` where `new [row, m]`; available frames are kept."""
        new = new & ~self.available.gather(1, nodes)
        frames = where_nodes(new, frames, take_nodes(self.frames, nodes))
        self.frames = _scattered(self.frames, nodes, frames)
        self.available = self.available.scatter(1, nodes, self.available.gather(1, nodes) | new)

    def put_keys(self, nodes: Tensor, pairs: Sequence[Pair]) -> None:
        """Store keys `[row, m, …]` of `nodes [row, m]` that have none yet."""
        rows, count = self.units.shape
        if self.keys is None:
            self.keys = [(_blank(key, rows, count), _blank(value, rows, count)) for key, value in pairs]
        kept = self.keyed.gather(1, nodes)

        def put(old: Tensor, new: Tensor) -> Tensor:
            return _scattered(old, nodes, where_nodes(kept, take_nodes(old, nodes), new))

        both = zip(self.keys, pairs, strict=True)
        self.keys = [(put(old[0], new[0]), put(old[1], new[1])) for old, new in both]
        self.keyed = self.keyed.scatter(1, nodes, True)

    def subtree(self, node: Tensor) -> "FrameTree":
        """The subtree at `node [row]` (-1: empty); all other frames and keys are removed."""
        reach = (self.lineage == node[:, None, None]).any(-1) & (node >= 0)[:, None]
        available, keyed, keys = self.available & reach, self.keyed & reach, self.keys
        if keys is not None:
            keys = [(_only(key, keyed), _only(value, keyed)) for key, value in keys]
        return replace(
            self, frames=_only(self.frames, available), available=available, keyed=keyed, keys=keys, root=node
        )


def levels(draft: Draft) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each depth of a rooted draft, the nodes `[row, m]` that some row has there, and which of them each row has."""
    rows = len(draft.units)
    for depth in range(draft.index.deepest + 1):
        at_depth = (draft.index.depth == depth).expand(rows, -1)
        level = at_depth.any(0).nonzero()[:, 0].expand(rows, -1)
        yield depth, level, at_depth.gather(1, level)


def _only(values: Tensor, nodes: Tensor) -> Tensor:
    """`values [row, node, …]` where `nodes [row, node]` is True, else 0."""
    return where_nodes(nodes, values, torch.zeros_like(values))


def _blank(like: Tensor, rows: int, nodes: int) -> Tensor:
    return like.new_zeros(rows, nodes, *like.shape[2:])


def _scattered(values: Tensor, nodes: Tensor, new: Tensor) -> Tensor:
    """`values [row, node, …]` with `new [row, m, …]` written to `nodes [row, m]`."""
    index = nodes.reshape(*nodes.shape, *(1,) * (values.dim() - 2)).expand_as(new)
    return values.scatter(1, index, new)
