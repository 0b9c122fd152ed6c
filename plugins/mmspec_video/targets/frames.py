"""Denoised frames as a target: the player's actions are the units, and their truth comes later.

`speculate` makes the frame of the root (the last known action) and, ahead of time, the frames of guessed actions;
`settle(…, truth=actions)` keeps what the player confirmed. A frame depends on the frames before it, its action and the
noise of its number, so it is the same frame whenever it was made. A frame takes many passes of the network, so a host
sync between frames costs little, and it saves making frames that are already available.
Lossy rules have frames made in another way (`denoising_with`): those of a draft jointly, or by a student.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mmspec.core.distributions import External, PointMass, take_nodes
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.offload import awake
from mmspec_video.deviation import distance
from mmspec_video.models.keys import Pair, select_frames
from mmspec_video.sampling import Sampler
from mmspec_video.specs import FRAMES
from mmspec_video.targets.cache import FramePrompt, FramesCache
from mmspec_video.targets.checked import Check, CheckedDenoiser
from mmspec_video.targets.denoiser import Cache, Denoiser, FrameModel, StoppedError
from mmspec_video.targets.joint import Joint, joint_frames
from mmspec_video.targets.tree import FrameTree, levels
from mmspec_video.targets.window import Window


class FramesTarget:
    """The target.

    Args:
        model: The transformer.
        sampler: The sampler; None: the model's own.
        cache: The cache option of `Denoiser`.

    Attributes:
        joint: Joint denoising of a draft's frames; None: they are made one after another.
        check: A student, and which of its frames are accepted; None: no student.

    Raises:
        ValueError: There is no such cache, or the size of the action space is unknown.
    """

    offers = FRAMES.offers

    def __init__(self, model: FrameModel, sampler: Sampler | None = None, cache: Cache = "exact") -> None:
        self.model = model
        self.denoiser = Denoiser(model, model.sampler if sampler is None else sampler, cache)
        if model.action_count is None:
            raise ValueError("this model reads actions as vectors: set its .vectors, one an action, and one for none")
        self.vocab: int | None = model.action_count
        self.most = model.window - 1
        self.joint: Joint | None = None
        self.check: Check | None = None

    def denoising_with(self, joint: Joint | None = None, check: Check | None = None) -> "FramesTarget":
        """A copy of this target whose frames are made in another way; the target itself stays as it is."""
        target = copy.copy(self)
        target.joint, target.check = joint, check
        return target

    @torch.no_grad()
    def start(self, inputs: FramePrompt, limit: int, width: int) -> Prefill:
        """Begin a call; the first action is a point mass: it becomes the first unit, whose frame the first pass makes.

        Raises:
            ValueError: Frames are missing, do not fit the model, or exceed its window.
        """
        frames, shape = inputs.frames, self.model.frame_shape
        rows, given = frames.shape[:2]
        if frames.shape[2:] != shape:
            raise ValueError(f"frames of this model are {list(shape)}, not {list(frames.shape[2:])}")
        if not 1 <= given <= self.most:
            raise ValueError(f"this model begins with 1 to {self.most} frames, not {given}")
        number = torch.full((rows,), given, device=frames.device)
        filled = torch.ones(rows, given, dtype=torch.bool, device=frames.device)
        window = Window(frames, inputs.actions, filled, number, given)
        key = PhiloxSource.seeded(inputs.seed, rows, frames.device).key
        altering = self.joint or self.check
        cache = FramesCache(key, window, deviation=None if altering is None else altering.deviation())
        output = TargetOutput(distribution=PointMass(inputs.action[:, None]))
        return Prefill(cache, output, inputs.actions[:, 1:], torch.zeros_like(number))

    @torch.no_grad()
    def verify(self, cache: FramesCache, draft: Draft, first: int = 0) -> TargetOutput:
        """Make the frames of all nodes, level by level; frames that are available are not made again.

        Raises:
            StoppedError: `cache.until` returned True; frames that were available before this pass still are.
        """
        index, shape = draft.index, self.model.frame_shape
        if cache.tree is None or draft.nodes > 1 or not bool(cache.tree.rooted.all()):
            tree = FrameTree.of(draft.units, index, shape, cache.window.frames).reusing(cache.tree, index)
            with self._awake():
                if self.joint is not None and draft.nodes > 1:
                    self._make_jointly(cache, tree, draft, self.joint)
                else:
                    for depth, level, own in levels(draft):
                        wanted = draft.valid.gather(1, level) & own
                        if bool((wanted & ~tree.available.gather(1, level)).any()):
                            self._make(cache, tree, level, wanted, depth)
            cache.tree = tree
        frames = cache.tree.frames
        if frames.shape[1] != draft.nodes:  # the root alone, at the top of a larger tree
            frames = take_nodes(frames, cache.tree.root[:, None])
        return TargetOutput(distribution=External(draft.units[:, first:]), auxiliary=frames[:, first:])

    @torch.no_grad()
    def commit(self, cache: FramesCache, path: Tensor, count: Tensor) -> None:
        tree, longest = cache.tree, int(count.max())
        assert tree is not None, "a commit without a pass"
        # The node of every committed unit, from the root on; -1 where a unit was not drafted.
        top = tree.root[:, None].clamp(min=0)
        nodes = torch.nn.functional.pad(torch.cat([top, path], 1), (0, 1), value=-1)
        kept = nodes[:, :longest].clamp(min=0)
        keys = None
        if self._keeps_keys(cache.window, longest):
            with self._awake():
                for depth in range(longest):
                    self._compute_keys(cache, tree, kept[:, depth : depth + 1], depth)
            keys = None if tree.keys is None else select_frames(tree.keys, kept)
        frames, actions = take_nodes(tree.frames, kept), tree.units.gather(1, kept)
        expire = self.denoiser.cache == "exact"
        cache.window = cache.window.extended(frames, actions, keys, count, longest, self.most, expire)
        root = torch.where(count > 0, nodes.gather(1, count[:, None])[:, 0], -1)
        cache.tree = tree.subtree(root) if bool((root >= 0).any()) else None

    def truncate(self, cache: FramesCache, length: Tensor) -> None:
        raise NotImplementedError("denoised frames cannot be taken back")

    def ready(self, cache: FramesCache) -> Tensor:
        """`[row]`: number of available frames from the root's on; of a chain, how far ahead they reach."""
        return torch.zeros_like(cache.window.number) if cache.tree is None else cache.tree.available.sum(1)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Inside the block, the models are on their device; a student follows a teacher that is offloaded."""
        with awake(self.model):
            if self.check is not None and self.check.student.device != self.model.device:
                self.check.student.to(self.model.device)
            yield

    def _make(self, cache: FramesCache, tree: FrameTree, level: Tensor, wanted: Tensor, depth: int) -> None:
        """Make the wanted frames of one level."""
        if cache.until is not None and cache.until():  # before the window's keys, which are a pass, too
            raise StoppedError
        window, denoiser = self._before(cache, tree, level, depth), self._denoiser()
        units, key = tree.units.gather(1, level).flatten(), cache.key.repeat_interleave(level.shape[1], 0)
        new = wanted & ~tree.available.gather(1, level)
        altered, gap = torch.zeros_like(new), None
        if isinstance(denoiser, CheckedDenoiser):
            frames, students, gap = denoiser.frame(window, units, key, cache.until)
            altered = new & students.unflatten(0, level.shape)
        else:
            frames = denoiser.frame(window, units, key, cache.until)
        if cache.deviation is not None:
            cache.deviation.count(new, altered, gap)
        cache.denoised += int(new.sum())
        tree.put(level, frames.unflatten(0, level.shape), wanted)

    def _make_jointly(self, cache: FramesCache, tree: FrameTree, draft: Draft, joint: Joint) -> None:
        """Make all missing frames of a draft in the passes of one."""
        new = draft.valid & ~tree.available
        if not bool(new.any()):
            return
        index, every = draft.index, torch.arange(draft.nodes, device=new.device).expand(len(new), -1)
        window = self._before(cache, tree, every[:, :1], 0)
        frames = joint_frames(self.denoiser, window, tree, index, cache.key, cache.until)
        # A frame whose parent was finished before is plain decoding's.
        altered = new & (index.depth > 0) & ~tree.available.gather(1, tree.parent.clamp(min=0))
        cache.denoised += int(new.sum())
        tree.put(every, frames, draft.valid)
        assert cache.deviation is not None
        cache.deviation.count(new, altered)
        for depth, level, own in levels(draft) if joint.measure else ():
            measured = (altered.gather(1, level) & own).flatten()
            if bool(measured.any()):
                window, units = self._before(cache, tree, level, depth), tree.units.gather(1, level).flatten()
                plain = self.denoiser.frame(window, units, cache.key.repeat_interleave(level.shape[1], 0))
                cache.deviation.measure(distance(take_nodes(tree.frames, level).flatten(0, 1), plain)[measured])

    def _compute_keys(self, cache: FramesCache, tree: FrameTree, nodes: Tensor, depth: int) -> None:
        """Compute the keys of nodes `[row, m]` at one depth, if some are missing."""
        if self.denoiser.cache == "none" or bool(tree.keyed.gather(1, nodes).all()):
            return
        window = self._before(cache, tree, nodes, depth)
        frames, units = take_nodes(tree.frames, nodes).flatten(0, 1), tree.units.gather(1, nodes).flatten()
        pairs = self._denoiser().keys_of(window, frames, units)
        shape = nodes.shape
        tree.put_keys(nodes, [(k[:, 0].unflatten(0, shape), v[:, 0].unflatten(0, shape)) for k, v in pairs])

    def _before(self, cache: FramesCache, tree: FrameTree, nodes: Tensor, depth: int) -> Window:
        """The window of the frames of nodes `[row, m]` at one depth: `row · m` rows."""
        keeps = self._keeps_keys(cache.window, depth)
        if keeps or not depth:
            cache.window = self._denoiser().keyed(cache.window)
        window, many = cache.window, nodes.shape[1]
        if not depth:
            return window.repeated(many)
        ancestors = tree.path(nodes, depth)  # [row, m, depth]
        path, keys = ancestors.flatten(1, 2), None
        if keeps:
            for above in range(depth):
                self._compute_keys(cache, tree, ancestors[..., above], above)
            keys = None if tree.keys is None else _unfolded(select_frames(tree.keys, path), depth)
        frames = take_nodes(tree.frames, path).unflatten(1, (many, depth)).flatten(0, 1)
        actions = tree.units.gather(1, path).unflatten(1, (many, depth)).flatten(0, 1)
        count, expire = torch.full_like(actions[:, 0], depth), self.denoiser.cache == "exact"
        window = window.repeated(many).extended(frames, actions, keys, count, depth, self.most, expire)
        return self._denoiser().keyed(window)

    def _denoiser(self) -> Denoiser | CheckedDenoiser:
        """The denoiser that makes frames and keys."""
        return self.denoiser if self.check is None else self.check.denoiser(self.denoiser)

    def _keeps_keys(self, window: Window, more: int) -> bool:
        """Whether keys stay valid after so many more frames: `exact` drops them once the window is full."""
        cache, full = self.denoiser.cache, window.fullest + more > self.most
        return cache == "streaming" or (cache == "exact" and not full)


def _unfolded(pairs: Sequence[Pair], depth: int) -> list[Pair]:
    """From `[row, m · depth, …]` to `[row · m, depth, …]`."""
    return [tuple(t.unflatten(1, (-1, depth)).flatten(0, 1) for t in pair) for pair in pairs]
