"""Frames from actions, by denoising: the player's actions are the units, and the truth of them comes later.

`speculate` makes the frame of the root (the last known action) and, ahead of their time, those of guessed actions;
`settle(…, truth=actions)` keeps what the player confirmed. A frame depends on the frames before it, its action and
noise that belongs to its number, so it is the same frame whenever it was made. One frame is many passes of the network:
looking at the device between frames costs nothing beside them, and saves making those that are there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.laws import PointMass, Told, take_nodes
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Raw, Started
from mmspec.hosts.offload import awake
from mmspec_video.sampling import Sampler
from mmspec_video.targets.denoiser import CACHES, Cache, Denoiser, FrameModel
from mmspec_video.targets.tree import FrameTree
from mmspec_video.targets.window import Window


@dataclass(frozen=True)
class Opening:
    """A prompt: frames that are there, and the first action.

    Attributes:
        frames: `[row, n, channel, height, width]` latents; `n` is at least 1.
        actions: `[row, n]` int64: what led to each; the first is the model's "not known" where it is.
        action: `[row]` int64: the player's first.
        seed: Of the frames' noise; one for all, or one a row.
    """

    frames: Tensor
    actions: Tensor
    action: Tensor
    seed: int | Sequence[int] = 0


@dataclass
class Memory:
    """What a call knows.

    Attributes:
        key: `[row, 2]`: of the noise.
        window: What the root's frame sees.
        tree: Frames that were made since the last commit.
        made: Frames that were made by the network, for benchmarks: those that were discarded count.
        until: Asked before every pass: whether frames ahead of their time are not wanted any more.
    """

    key: Tensor
    window: Window
    tree: FrameTree | None = None
    made: int = 0
    until: Callable[[], bool] | None = None


class FramesTarget:
    """The target.

    Args:
        model: The transformer.
        sampler: From noise to frames; None: what the model was made for.
        cache: As in `Denoiser`.
        vectors: `[action + 1, …]`: what a model reads of every action that does not read its number; the last
            one stands for "not known".

    Raises:
        ValueError: There is no such cache, or nothing says what actions there are.
    """

    offers = frozenset({"discrete", "tree", "grow", "told"})

    def __init__(
        self,
        model: FrameModel,
        sampler: Sampler | None = None,
        cache: Cache = "exact",
        vectors: Tensor | None = None,
    ) -> None:
        if cache not in CACHES:
            raise ValueError(f"cache is one of {', '.join(CACHES)}, not {cache!r}")
        self.model = model
        vectors = model.vectors if vectors is None else vectors
        self.denoiser = Denoiser(model, model.sampler if sampler is None else sampler, cache, vectors)
        known = getattr(model.config, "actions", None) if vectors is None else len(vectors) - 1
        if known is None:
            raise ValueError("this model reads actions as vectors: say vectors=, one an action, and one for none")
        self.vocab: int | None = known
        self.most = model.window - 1

    @torch.no_grad()
    def start(self, inputs: Opening, limit: int, width: int) -> Started:
        """The first action is a point mass: it becomes the first unit, whose frame the first pass makes.

        Raises:
            ValueError: Frames are missing, do not fit the model, or are more than it sees at once.
        """
        frames, shape = inputs.frames, self.model.frame_shape
        rows, given = frames.shape[:2]
        if frames.shape[2:] != shape:
            raise ValueError(f"frames of this model are {list(shape)}, not {list(frames.shape[2:])}")
        if not 1 <= given <= self.most:
            raise ValueError(f"this model begins with 1 to {self.most} frames, not {given}")
        number = torch.full((rows,), given, device=frames.device)
        there = torch.ones(rows, given, dtype=torch.bool, device=frames.device)
        window = Window(frames, inputs.actions, there, number, given)
        key = PhiloxSource.seeded(inputs.seed, rows, frames.device).key
        prompt = inputs.actions[:, 1:]
        pads = torch.zeros_like(number)
        return Started(Memory(key, window), Raw(law=PointMass(inputs.action[:, None])), prompt, pads)

    @torch.no_grad()
    def verify(self, cache: Memory, draft: Draft, first: int = 0) -> Raw:
        """Frames of all nodes, level by level; those that were made since the last commit are not made again.

        Raises:
            StoppedError: `cache.until` says so; what was made before this pass is still there, and nothing else.
        """
        index, shape = draft.index, self.model.frame_shape
        if cache.tree is None or draft.nodes > 1 or not bool(_root_is_there(cache.tree).all()):
            tree = FrameTree.of(draft.units, index, shape, cache.window.frames).taking(cache.tree, index)
            with awake(self.model):
                for depth in range(index.deepest + 1):
                    at_depth = (index.depth == depth).expand(len(draft.units), -1)
                    level = at_depth.any(0).nonzero()[:, 0].expand(len(draft.units), -1)
                    wanted = (draft.valid & at_depth).gather(1, level)
                    if bool((wanted & ~tree.there.gather(1, level)).any()):
                        self._make(cache, tree, level, wanted, depth)
            cache.tree = tree
        made = cache.tree.frames
        if made.shape[1] != draft.nodes:  # the root alone, at the top of a larger tree
            made = take_nodes(made, cache.tree.root[:, None])
        return Raw(law=Told(draft.units[:, first:]), made=made[:, first:])

    @torch.no_grad()
    def commit(self, cache: Memory, path: Tensor, count: Tensor) -> None:
        tree, longest = cache.tree, int(count.max())
        assert tree is not None, "a commit without a pass"
        # Node of every unit from the root on; -1 where a unit was not drafted.
        top = tree.root[:, None].clamp(min=0)
        nodes = torch.nn.functional.pad(torch.cat([top, path], 1), (0, 1), value=-1)
        kept = nodes[:, :longest].clamp(min=0)
        keys = None
        if self._keeps(cache.window, longest):
            with awake(self.model):
                for depth in range(longest):
                    self._key(cache, tree, kept[:, depth : depth + 1], depth)
            keys = None if tree.keys is None else _taken(tree, kept)
        frames, actions = take_nodes(tree.frames, kept), tree.units.gather(1, kept)
        forget = self.denoiser.cache == "exact"
        cache.window = cache.window.then(frames, actions, keys, count, longest, self.most, forget)
        root = torch.where(count > 0, nodes.gather(1, count[:, None])[:, 0], -1)
        cache.tree = tree.under(root) if bool((root >= 0).any()) else None

    def truncate(self, cache: Memory, length: Tensor) -> None:
        raise NotImplementedError("a world goes on; it cannot go back")

    def standing(self, cache: Memory) -> Tensor | None:
        """The root's frames `[row, …]`, if they were made already: no pass is needed to show them."""
        tree = cache.tree
        if tree is None or not bool(_root_is_there(tree).all()):
            return None
        return take_nodes(tree.frames, tree.root[:, None])[:, 0]

    def _make(self, cache: Memory, tree: FrameTree, level: Tensor, wanted: Tensor, depth: int) -> None:
        window, rows = self._before(cache, tree, level, depth), level.shape[1]
        units = tree.units.gather(1, level).flatten()
        key = cache.key.repeat_interleave(rows, 0)
        frames = self.denoiser.frame(window, units, key, cache.until)
        cache.made += int((wanted & ~tree.there.gather(1, level)).sum())
        tree.put(level, frames.unflatten(0, level.shape), wanted)

    def _key(self, cache: Memory, tree: FrameTree, nodes: Tensor, depth: int) -> None:
        """Keys of nodes `[row, m]` at one depth, if some of them lack theirs."""
        if self.denoiser.cache == "none" or bool(tree.keyed.gather(1, nodes).all()):
            return
        window = self._before(cache, tree, nodes, depth)
        frames, units = take_nodes(tree.frames, nodes).flatten(0, 1), tree.units.gather(1, nodes).flatten()
        pairs = self.denoiser.keys_of(window, frames, units)
        shape = nodes.shape
        tree.put_keys(nodes, [(k[:, 0].unflatten(0, shape), v[:, 0].unflatten(0, shape)) for k, v in pairs])

    def _before(self, cache: Memory, tree: FrameTree, nodes: Tensor, depth: int) -> Window:
        """What the frames of nodes `[row, m]` at one depth see: a row a node."""
        cache.window = self.denoiser.keyed(cache.window)
        window, many = cache.window, nodes.shape[1]
        if not depth:
            return window.repeated(many)
        path = tree.path(nodes, depth).flatten(1, 2)  # [row, m · depth]
        keys = None
        if self._keeps(window, depth):
            for above in range(depth):
                at = tree.path(nodes, depth)[..., above]
                self._key(cache, tree, at, above)
            keys = None if tree.keys is None else _apart(_taken(tree, path), depth)
        frames = take_nodes(tree.frames, path).unflatten(1, (many, depth)).flatten(0, 1)
        actions = tree.units.gather(1, path).unflatten(1, (many, depth)).flatten(0, 1)
        count, forget = torch.full_like(actions[:, 0], depth), self.denoiser.cache == "exact"
        made = window.repeated(many).then(frames, actions, keys, count, depth, self.most, forget)
        return self.denoiser.keyed(made)

    def _keeps(self, window: Window, more: int) -> bool:
        """Whether keys are of any use behind so many more frames: `exact` computes those of a full window anew."""
        return self.denoiser.cache == "streaming" or (
            self.denoiser.cache == "exact" and window.held + more <= self.most
        )


def _root_is_there(tree: FrameTree) -> Tensor:
    return tree.there.gather(1, tree.root[:, None].clamp(min=0))[:, 0] & (tree.root >= 0)


def _taken(tree: FrameTree, nodes: Tensor) -> list[tuple[Tensor, Tensor]]:
    assert tree.keys is not None
    return [(take_nodes(k, nodes), take_nodes(v, nodes)) for k, v in tree.keys]


def _apart(pairs: Sequence[tuple[Tensor, Tensor]], depth: int) -> list[tuple[Tensor, Tensor]]:
    """`[row, m · depth, …]` to a row a node."""
    return [tuple(t.unflatten(1, (-1, depth)).flatten(0, 1) for t in pair) for pair in pairs]  # type: ignore[misc]
