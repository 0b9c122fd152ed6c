"""Denoised frames as a target: the player's actions are the units, and their truth comes later.

`speculate` makes the frame of the root (the last known action) and, ahead of time, the frames of guessed actions;
`settle(…, truth=actions)` keeps what the player confirmed. A frame depends on the frames before it, its action and the
noise of its number, so it is the same frame whenever it was made. The host knows which frames are available, so that
they are not made again: it reads every draft once, and every commit behind one.
Lossy rules have frames made in another way (`denoising_with`): a draft's frames jointly, or by a student.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import External, PointMass, take_nodes
from mmspec.core.philox import PhiloxSource
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.devices import awake
from mmspec_video.deviation import distance
from mmspec_video.models.keys import Pair, select_frames
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.sampling import Sampler
from mmspec_video.specs import FRAMES
from mmspec_video.targets.checked import Check, CheckedDenoiser
from mmspec_video.targets.denoiser import Cache, Denoiser, FrameModel, StoppedError
from mmspec_video.targets.joint import Joint, joint_frames
from mmspec_video.targets.tree import Flags, FramePrompt, FramesCache, FrameTree, Nodes
from mmspec_video.targets.window import Window


class FramesTarget:
    """The target."""

    offers = FRAMES.offers

    def __init__(self, model: FrameModel, sampler: Sampler | None = None, cache: Cache = "exact") -> None:
        self.model = model
        self.denoiser = Denoiser(model, model.sampler if sampler is None else sampler, cache)
        if model.action_count is None:
            raise ValueError("this model reads actions as vectors: set its .vectors, one an action, and one for none")
        self.vocab: int | None = model.action_count
        self.most = model.window - 1
        self.joint: Joint | None = None  # joint denoising of a draft's frames; None: they are made one after another
        self.check: Check | None = None  # a student, and which of its frames are accepted; None: no student

    def denoising_with(
        self, joint: Joint | None = None, check: Check | None = None, student: NextFrameDiT | None = None
    ) -> "FramesTarget":
        """A copy of this target whose frames are made in another way, or by a student; the target stays as it is."""
        target = copy.copy(self)
        target.joint, target.check = joint, check
        if student is not None:
            target.denoiser = replace(self.denoiser, model=student, sampler=student.sampler)
        return target

    @torch.no_grad()
    def start(self, inputs: FramePrompt, limit: int, width: int) -> Prefill:
        """Begin a call; the first action is a point mass: the first unit, whose frame the first pass makes."""
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
        """Make the frames of all nodes, level by level; frames that are available are not made again. `cache.until` may
        stop it by `StoppedError`: frames that were available before this pass still are.
        """
        if cache.tree is None or draft.nodes > 1 or not all(cache.tree.rooted):
            tree = FrameTree.of(draft, self.model.frame_shape, cache.window.frames).reusing(cache.tree)
            with self._awake():
                if self.joint is not None and draft.nodes > 1:
                    self._make_jointly(cache, tree, draft, self.joint)
                else:
                    for depth, level, wanted in tree.levels():
                        new = tree.missing(level, wanted)
                        if any(map(any, new)):
                            self._make(cache, tree, level, new, depth)
            cache.tree = tree
        frames = cache.tree.frames
        if frames.shape[1] != draft.nodes:  # the root alone, at the top of a larger tree
            frames = take_nodes(frames, cache.tree.places([[root] for root in cache.tree.root]))
        return TargetOutput(distribution=External(draft.units[:, first:]), auxiliary=frames[:, first:])

    @torch.no_grad()
    def commit(self, cache: FramesCache, path: Tensor, count: Tensor) -> None:
        tree = cache.tree
        assert tree is not None, "a commit without a pass"
        # Behind a root alone no host has to know which rows are finished.
        read = torch.cat([count[:, None], path], 1).tolist() if path.shape[1] else [[1]] * len(path)
        longest = max(taken for taken, *_ in read)
        # The node of every committed unit, from the root on; -1 where a unit was not drafted.
        nodes = [[max(root, 0), *drafted, -1] for root, (_, *drafted) in zip(tree.root, read, strict=True)]
        kept, keys = [[max(node, 0) for node in row[:longest]] for row in nodes], None
        if self._keeps_keys(cache.window, longest):
            with self._awake():
                for depth in range(longest):
                    self._compute_keys(cache, tree, [row[depth : depth + 1] for row in kept], depth)
            keys = None if tree.keys is None else select_frames(tree.keys, tree.places(kept))
        frames, actions = take_nodes(tree.frames, tree.places(kept)), tree.units.gather(1, tree.places(kept))
        expire = self.denoiser.cache == "exact"
        cache.window = cache.window.extended(
            frames, actions, keys, count, longest=longest, most=self.most, expire=expire
        )
        root = [row[taken] if taken else -1 for row, (taken, *_) in zip(nodes, read, strict=True)]
        cache.tree = tree.subtree(root) if max(root) >= 0 else None

    def truncate(self, cache: FramesCache, length: Tensor) -> None:
        raise NotImplementedError("denoised frames cannot be taken back")

    def ready(self, cache: FramesCache) -> Tensor:
        """`[row]`: number of available frames from the root's on; of a chain, how far ahead they reach."""
        number = cache.window.number
        if cache.tree is None:
            return torch.zeros_like(number)
        return on_device([sum(made) for made in cache.tree.available], number.device, torch.int64)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Inside the block, the models are on their device; a student follows a teacher that is offloaded."""
        with awake(self.model):
            own: Any = self.denoiser.model if self.check is None else self.check.student
            if own.device != self.model.device:
                own.to(self.model.device)
            yield

    def _make(self, cache: FramesCache, tree: FrameTree, level: Nodes, new: Flags, depth: int) -> None:
        """Make the frames of one level; only `new` frames are kept."""
        if cache.until is not None and cache.until():  # before the window's keys, which are a pass, too
            raise StoppedError
        window, denoiser, many = self._before(cache, tree, level, depth), self._denoiser(), len(level[0])
        units, key = tree.units.gather(1, tree.places(level)).flatten(), cache.key.repeat_interleave(many, 0)
        made, gap = torch.tensor(new, device="cpu"), None
        altered = torch.zeros_like(made)
        if isinstance(denoiser, CheckedDenoiser):
            frames, students, gap = denoiser.frame(window, units, key, cache.until)
            altered = made & students.view_as(made)
        else:
            frames = denoiser.frame(window, units, key, cache.until)
        if cache.deviation is not None:
            cache.deviation.count(made, altered, gap)
        cache.denoised += int(made.sum())
        tree.put(level, frames.unflatten(0, (-1, many)), new)

    def _make_jointly(self, cache: FramesCache, tree: FrameTree, draft: Draft, joint: Joint) -> None:
        """Make all missing frames of a draft in the passes of one."""
        every = [list(range(draft.nodes))] * len(tree.root)
        new = tree.missing(every, tree.valid)
        if not any(map(any, new)):
            return
        window = self._before(cache, tree, [row[:1] for row in every], 0)
        frames = joint_frames(self.denoiser, window, tree, draft.index, cache.key, cache.until)
        # A frame whose parent was finished before is plain decoding's.
        rows = zip(new, tree.lineage, tree.available, strict=True)
        altered = [
            [n and len(line) > 1 and not made[line[-2]] for n, line in zip(row, lines, strict=True)]
            for row, lines, made in rows
        ]
        tree.put(every, frames, new)
        assert cache.deviation is not None
        made = torch.tensor(new, device="cpu")
        cache.denoised += int(made.sum())
        cache.deviation.count(made, torch.tensor(altered, device="cpu"))
        for distances in self._off(cache, tree, altered) if joint.measure else ():
            cache.deviation.measure(distances)

    def _off(self, cache: FramesCache, tree: FrameTree, altered: Flags) -> Sequence[Tensor]:
        """Distances of altered frames from plain decoding's behind the same frames, level by level, on the host."""
        distances = list[Tensor]()
        for depth, level, wanted in tree.levels():
            rows = zip(level, wanted, altered, strict=True)
            chosen = [want and of[n] for row, wants, of in rows for n, want in zip(row, wants, strict=True)]
            if any(chosen):
                window, at, many = self._before(cache, tree, level, depth), tree.places(level), len(level[0])
                units, key = tree.units.gather(1, at).flatten(), cache.key.repeat_interleave(many, 0)
                off = distance(take_nodes(tree.frames, at).flatten(0, 1), self.denoiser.frame(window, units, key))
                distances.append(off[tree.places([[i for i, is_one in enumerate(chosen) if is_one]])[0]])
        return torch.cat(distances).cpu().split([len(each) for each in distances]) if distances else ()

    def _compute_keys(self, cache: FramesCache, tree: FrameTree, nodes: Nodes, depth: int) -> None:
        """Compute the keys of nodes at one depth, if some are missing."""
        if self.denoiser.cache == "none" or all(map(all, tree.has_keys(nodes))):
            return
        window, at = self._before(cache, tree, nodes, depth), tree.places(nodes)
        frames, units = take_nodes(tree.frames, at).flatten(0, 1), tree.units.gather(1, at).flatten()
        pairs = self._denoiser().keys_of(window, frames, units)
        shape = at.shape
        tree.put_keys(nodes, [(k[:, 0].unflatten(0, shape), v[:, 0].unflatten(0, shape)) for k, v in pairs])

    def _before(self, cache: FramesCache, tree: FrameTree, nodes: Nodes, depth: int) -> Window:
        """The window of the frames of nodes `[row][m]` at one depth: `row · m` rows."""
        keeps = self._keeps_keys(cache.window, depth)
        if keeps or not depth:
            cache.window = self._denoiser().keyed(cache.window)
        window, many = cache.window, len(nodes[0])
        if not depth:
            return window.repeated(many)
        ancestors, keys = tree.path(nodes, depth), None
        path = tree.places([[node for line in row for node in line] for row in ancestors])
        if keeps:
            for above in range(depth):
                self._compute_keys(cache, tree, [[line[above] for line in row] for row in ancestors], above)
            keys = None if tree.keys is None else _unfolded(select_frames(tree.keys, path), depth)
        frames = take_nodes(tree.frames, path).unflatten(1, (many, depth)).flatten(0, 1)
        actions = tree.units.gather(1, path).unflatten(1, (many, depth)).flatten(0, 1)
        count, expire = torch.full_like(actions[:, 0], depth), self.denoiser.cache == "exact"
        window = window.repeated(many).extended(
            frames, actions, keys, count, longest=depth, most=self.most, expire=expire
        )
        return self._denoiser().keyed(window)

    def _denoiser(self) -> Denoiser | CheckedDenoiser:
        return self.denoiser if self.check is None else self.check.denoiser(self.denoiser)

    def _keeps_keys(self, window: Window, more: int) -> bool:
        """True if keys stay valid after so many more frames: `exact` drops them once the window is full."""
        cache, full = self.denoiser.cache, window.fullest + more > self.most
        return cache == "streaming" or (cache == "exact" and not full)


def _unfolded(pairs: Sequence[Pair], depth: int) -> list[Pair]:
    """From `[row, m · depth, …]` to `[row · m, depth, …]`."""
    return [tuple(t.unflatten(1, (-1, depth)).flatten(0, 1) for t in pair) for pair in pairs]
