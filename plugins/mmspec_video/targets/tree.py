"""A call's prompt and cache, and the tree of frames that were made since the last commit.

The tree has the root's frame, and the frames of guessed actions below it. Frames and keys are on the device. What there
is of them is known on the host, which decides what the network computes: it reads a draft's actions once, and waits for
nothing else here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes, where_nodes
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft
from mmspec_video.deviation import Deviation
from mmspec_video.models.keys import Pair, select_frames
from mmspec_video.targets.window import Window

Nodes = Sequence[Sequence[int]]  # nodes of every row, on the host: `[row][m]`
Flags = list[list[bool]]  # the facts of every node: `[row][node]`


@dataclass
class FrameTree:
    """A tree of frames; node 0 is the root's."""

    units: Tensor  # `[row, node]` int64: the actions
    actions: list[list[int]]  # the same on the host, `[row][node]`; the root's may be missing (-1)
    valid: Flags  # nodes whose frames are wanted
    lineage: list[list[list[int]]]  # `[row][node]`: the nodes from the root to this one
    frames: Tensor  # `[row, node, channel, height, width]`, 0 where no frame is available
    available: Flags  # the frame was made
    keyed: Flags  # the frame's keys were computed, too
    # Keys and values of all nodes, layer by layer: `[row, node, cell, head, width]`; None: none were computed
    keys: Sequence[Pair] | None
    root: list[int]  # `[row]`: the node that is the root now; -1: the root's frame is not in the tree

    @property
    def rooted(self) -> list[bool]:
        """True if the root's frame is available, for every row."""
        return [root >= 0 and made[root] for root, made in zip(self.root, self.available, strict=True)]

    @classmethod
    def of(cls, draft: Draft, shape: Sequence[int], like: Tensor) -> "FrameTree":
        """A tree without frames; they will have shape `shape`, and dtype and device of `like`."""
        rows, nodes = draft.units.shape
        actions, valid, parents = [[-1]] * rows, [[True]] * rows, [[-1]] * rows
        if nodes > 1:
            index = draft.index
            unread = () if index.listed is not None else (index.parent.expand(rows, -1),)
            actions, flags, *read = torch.stack([draft.units, draft.valid.long(), *unread]).tolist()
            valid = [[bool(flag) for flag in row] for row in flags]
            parents = read[0] if index.listed is None else [list(index.listed)] * rows
        lineage = [_lineages(row) for row in parents]
        nothing = [[False] * nodes for _ in range(rows)]
        frames = like.new_zeros(rows, nodes, *shape)
        keyed = [list(row) for row in nothing]
        return cls(draft.units, actions, valid, lineage, frames, nothing, keyed, None, [0] * rows)

    def reusing(self, old: "FrameTree | None") -> "FrameTree":
        """This tree with the frames and keys that `old` has for the same actions."""
        if old is None:
            return self
        same = [self._same(old, row) for row in range(len(self.root))]
        at = self.places([[max(node, 0) for node in row] for row in same])

        def found(flags: Flags) -> Flags:
            return [[node >= 0 and had[node] for node in row] for row, had in zip(same, flags, strict=True)]

        frames = where_nodes(self.flags([[node >= 0 for node in row] for row in same]), take_nodes(old.frames, at),
                             self.frames)  # fmt: skip
        keys = None if old.keys is None else select_frames(old.keys, at)
        return replace(self, frames=frames, available=found(old.available), keyed=found(old.keyed), keys=keys)

    def _same(self, old: "FrameTree", row: int) -> list[int]:
        """For every node of a row the old node with the same path of actions; -1: none."""
        known = {
            (line[-2], old.actions[row][node]): node
            for node, line in reversed(list(enumerate(old.lineage[row])))
            if len(line) > 1 and old.available[row][node]
        }
        same = [old.root[row]]
        for node, line in enumerate(self.lineage[row][1:], 1):
            same.append(known.get((same[line[-2]], self.actions[row][node]), -1))
        return same

    def levels(self) -> Iterator[tuple[int, Nodes, Flags]]:
        """Each depth, the nodes that some row has there (the same list for every row), and which of them are wanted."""
        for depth in range(max(len(line) for row in self.lineage for line in row)):
            there = [[len(line) == depth + 1 for line in row] for row in self.lineage]
            level = [node for node, own in enumerate(zip(*there, strict=True)) if any(own)]
            wanted = [[own[n] and valid[n] for n in level] for own, valid in zip(there, self.valid, strict=True)]
            yield depth, [level] * len(there), wanted

    def missing(self, nodes: Nodes, wanted: Flags) -> Flags:
        """The wanted `nodes` that have no frame."""
        rows = zip(nodes, wanted, self.available, strict=True)
        return [[want and not made[n] for n, want in zip(row, wants, strict=True)] for row, wants, made in rows]

    def path(self, nodes: Nodes, depth: int) -> list[list[list[int]]]:
        """The ancestors `[row][m][depth]` of `nodes` at one depth, the root first."""
        rows = zip(nodes, self.lineage, strict=True)
        return [[[*lines[n], *[0] * depth][:depth] for n in row] for row, lines in rows]

    def put(self, nodes: Nodes, frames: Tensor, new: Flags) -> None:
        """Store frames `[row, m, …]` of `nodes` where they are `new`."""
        at = self.places(nodes)
        self.frames = _scattered(self.frames, at, where_nodes(self.flags(new), frames, take_nodes(self.frames, at)))
        for made, row, which in zip(self.available, nodes, new, strict=True):
            for node, stored in zip(row, which, strict=True):
                made[node] |= stored

    def has_keys(self, nodes: Nodes) -> Flags:
        return [[keyed[n] for n in row] for row, keyed in zip(nodes, self.keyed, strict=True)]

    def put_keys(self, nodes: Nodes, pairs: Sequence[Pair]) -> None:
        """Store keys `[row, m, …]` of `nodes` that have none yet."""
        rows, count = self.units.shape
        if self.keys is None:
            self.keys = [(_blank(key, rows, count), _blank(value, rows, count)) for key, value in pairs]
        kept, at = self.flags(self.has_keys(nodes)), self.places(nodes)

        def put(old: Tensor, new: Tensor) -> Tensor:
            return _scattered(old, at, where_nodes(kept, take_nodes(old, at), new))

        both = zip(self.keys, pairs, strict=True)
        self.keys = [(put(old[0], new[0]), put(old[1], new[1])) for old, new in both]
        for keyed, row in zip(self.keyed, nodes, strict=True):
            for node in row:
                keyed[node] = True

    def subtree(self, root: list[int]) -> "FrameTree":
        """The subtree at a node of every row (-1: empty); all other frames and keys are removed."""

        def below(flags: Flags) -> Flags:
            rows = zip(flags, self.lineage, root, strict=True)
            return [[f and top in line for f, line in zip(row, lines, strict=True)] for row, lines, top in rows]

        available, keyed, keys = below(self.available), below(self.keyed), self.keys
        if keys is not None:
            left = self.flags(keyed)
            keys = [(_only(key, left), _only(value, left)) for key, value in keys]
        frames = _only(self.frames, self.flags(available))
        return replace(self, frames=frames, available=available, keyed=keyed, keys=keys, root=root)

    def places(self, nodes: Nodes) -> Tensor:
        """Nodes on the device: `[row, m]` int64."""
        return on_device(nodes, self.units.device, torch.int64)

    def flags(self, flags: Flags) -> Tensor:
        """Flags on the device: `[row, m]` bool."""
        return on_device(flags, self.units.device, torch.bool)


def _lineages(parents: Sequence[int]) -> list[list[int]]:
    """The nodes from the root to each node, of parents (-1 at the root)."""
    lines = list[list[int]]()
    for node, parent in enumerate(parents):
        lines.append([*(lines[parent] if parent >= 0 else ()), node])
    return lines


def _only(values: Tensor, nodes: Tensor) -> Tensor:
    """`values [row, node, …]` where `nodes [row, node]` is True, else 0."""
    return where_nodes(nodes, values, torch.zeros_like(values))


def _blank(like: Tensor, rows: int, nodes: int) -> Tensor:
    return like.new_zeros(rows, nodes, *like.shape[2:])


def _scattered(values: Tensor, nodes: Tensor, new: Tensor) -> Tensor:
    """`values [row, node, …]` with `new [row, m, …]` written to `nodes [row, m]`."""
    index = nodes.reshape(*nodes.shape, *(1,) * (values.dim() - 2)).expand_as(new)
    return values.scatter(1, index, new)


@dataclass(frozen=True)
class FramePrompt:
    frames: Tensor  # `[row, n, channel, height, width]` latents; `n` is at least 1
    actions: Tensor  # `[row, n]` int64: the action that led to each frame; the model's "unknown" id where none is known
    action: Tensor  # `[row]` int64: the player's first action, which leads to the first new frame
    seed: int | Sequence[int] = 0  # seed of the frames' noise: one for all rows, or one a row


@dataclass
class FramesCache:
    key: Tensor  # `[row, 2]`: keys of the noise
    window: Window  # the frames that the root's frame attends to
    tree: FrameTree | None = None  # frames that were made since the last commit
    denoised: int = 0  # number of frames that the network made, discarded ones included
    until: Callable[[], bool] | None = None  # called before every pass while frames are made ahead; True stops it
    deviation: Deviation | None = None  # altered frames, under a lossy rule
