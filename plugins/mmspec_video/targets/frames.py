"""Frames from actions, by denoising: the player's actions are the units, and the truth of them comes later.

`speculate` makes the frame of the root (the last known action) and, ahead of their time, those of guessed actions;
`settle(…, truth=actions)` keeps what the player confirmed. A frame depends on the frames before it, its action and
noise that belongs to its number, so it is the same frame whenever it was made. One frame is many passes of the network:
looking at the device between frames costs nothing beside them, and saves making those that are there.
Lossy rules make frames otherwise (`FramesTarget.making`): those of a draft together, or by a student.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.distributions import External, PointMass, take_nodes
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.offload import awake
from mmspec_video.deviation import Deviation, distance
from mmspec_video.plugin import FRAMES
from mmspec_video.sampling import Sampler
from mmspec_video.targets.checked import Check, CheckedDenoiser
from mmspec_video.targets.denoiser import CACHES, Cache, Denoiser, FrameModel, StoppedError
from mmspec_video.targets.joint import Block, Joint, joint_frames
from mmspec_video.targets.memory import Memory, Opening
from mmspec_video.targets.tree import FrameTree, levels
from mmspec_video.targets.window import Window


class FramesTarget:
    """The target.

    Args:
        model: The transformer.
        sampler: From noise to frames; None: what the model was made for.
        cache: As in `Denoiser`.
        vectors: `[action + 1, …]`: what a model reads of every action that does not read its number; the last
            one stands for "not known".

    Attributes:
        joint: How frames of a draft are made together; None: one after another.
        check: Whose frames stand instead of the model's own; None: nobody's.

    Raises:
        ValueError: There is no such cache, or nothing says what actions there are.
    """

    offers = FRAMES.offers

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
        self.joint: Joint | None = None
        self.check: Check | None = None

    def making(self, joint: Joint | None = None, check: Check | None = None) -> "FramesTarget":
        """This target, making frames otherwise: a copy, so that other decoders' frames stay what they were."""
        made = copy.copy(self)
        made.joint, made.check = joint, check
        return made

    @torch.no_grad()
    def start(self, inputs: Opening, limit: int, width: int) -> Prefill:
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
        what = self.joint or self.check
        memory = Memory(key, window, deviation=None if what is None else Deviation(what.says, what.off))
        return Prefill(memory, TargetOutput(distribution=PointMass(inputs.action[:, None])), prompt, pads)

    @torch.no_grad()
    def verify(self, cache: Memory, draft: Draft, first: int = 0) -> TargetOutput:
        """Frames of all nodes, level by level; those that were made since the last commit are not made again.

        Raises:
            StoppedError: `cache.until` says so; what was made before this pass is still there, and nothing else.
        """
        index, shape = draft.index, self.model.frame_shape
        if cache.tree is None or draft.nodes > 1 or not bool(cache.tree.rooted.all()):
            tree = FrameTree.of(draft.units, index, shape, cache.window.frames).taking(cache.tree, index)
            with awake(self.model):
                if self.joint is not None and draft.nodes > 1:
                    self._make_together(cache, tree, draft, self.joint)
                else:
                    for depth, level, own in levels(draft):
                        wanted = draft.valid.gather(1, level) & own
                        if bool((wanted & ~tree.there.gather(1, level)).any()):
                            self._make(cache, tree, level, wanted, depth)
            cache.tree = tree
        made = cache.tree.frames
        if made.shape[1] != draft.nodes:  # the root alone, at the top of a larger tree
            made = take_nodes(made, cache.tree.root[:, None])
        return TargetOutput(distribution=External(draft.units[:, first:]), auxiliary=made[:, first:])

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
        cache.tree = tree.subtree(root) if bool((root >= 0).any()) else None

    def truncate(self, cache: Memory, length: Tensor) -> None:
        raise NotImplementedError("a world goes on; it cannot go back")

    def standing(self, cache: Memory) -> Tensor | None:
        """The root's frames `[row, …]`, if they were made already: no pass is needed to show them."""
        tree = cache.tree
        if tree is None or not bool(tree.rooted.all()):
            return None
        return take_nodes(tree.frames, tree.root[:, None])[:, 0]

    def ready(self, cache: Memory) -> Tensor:
        """How many frames stand ready, the root's included: `[row]`; of chains, that is how far ahead."""
        return torch.zeros_like(cache.window.number) if cache.tree is None else cache.tree.there.sum(1)

    def _make(self, cache: Memory, tree: FrameTree, level: Tensor, wanted: Tensor, depth: int) -> None:
        if cache.until is not None and cache.until():  # keys of the window are passes, too
            raise StoppedError
        window, rows = self._before(cache, tree, level, depth), level.shape[1]
        units = tree.units.gather(1, level).flatten()
        key = cache.key.repeat_interleave(rows, 0)
        new = wanted & ~tree.there.gather(1, level)
        altered, gap = torch.zeros_like(new), None
        if self.check is None:
            frames = self.denoiser.frame(window, units, key, cache.until)
        else:
            frames, students, gap = self.check.over(self.denoiser).frame(window, units, key, cache.until)
            altered = new & students.unflatten(0, level.shape)
        if cache.deviation is not None:
            cache.deviation.count(new, altered, gap)
        cache.made += int(new.sum())
        tree.put(level, frames.unflatten(0, level.shape), wanted)

    def _make_together(self, cache: Memory, tree: FrameTree, draft: Draft, joint: Joint) -> None:
        new = draft.valid & ~tree.there
        if not bool(new.any()):
            return
        index, every = draft.index, torch.arange(draft.nodes, device=new.device).expand(len(new), -1)
        window = self._before(cache, tree, every[:, :1], 0)
        block = Block(tree.units, index.depth.expand_as(new), index.ancestor, tree.frames, tree.there)
        frames = joint_frames(self.denoiser, window, block, cache.key, cache.until)
        # Where the frame before was finished, this one has seen what it sees in plain play.
        altered = new & (index.depth > 0) & ~tree.there.gather(1, tree.parent.clamp(min=0))
        cache.made += int(new.sum())
        tree.put(every, frames, draft.valid)
        assert cache.deviation is not None
        cache.deviation.count(new, altered)
        for depth, level, own in levels(draft) if joint.measure else ():
            of_interest = (altered.gather(1, level) & own).flatten()
            if bool(of_interest.any()):
                window, units = self._before(cache, tree, level, depth), tree.units.gather(1, level).flatten()
                plain = self.denoiser.frame(window, units, cache.key.repeat_interleave(level.shape[1], 0))
                cache.deviation.measure(distance(take_nodes(tree.frames, level).flatten(0, 1), plain)[of_interest])

    def _key(self, cache: Memory, tree: FrameTree, nodes: Tensor, depth: int) -> None:
        """Keys of nodes `[row, m]` at one depth, if some of them lack theirs."""
        if self.denoiser.cache == "none" or bool(tree.keyed.gather(1, nodes).all()):
            return
        window = self._before(cache, tree, nodes, depth)
        frames, units = take_nodes(tree.frames, nodes).flatten(0, 1), tree.units.gather(1, nodes).flatten()
        pairs = self._keyer.keys_of(window, frames, units)
        shape = nodes.shape
        tree.put_keys(nodes, [(k[:, 0].unflatten(0, shape), v[:, 0].unflatten(0, shape)) for k, v in pairs])

    def _before(self, cache: Memory, tree: FrameTree, nodes: Tensor, depth: int) -> Window:
        """What the frames of nodes `[row, m]` at one depth see: a row a node."""
        keeps = self._keeps(cache.window, depth)
        if keeps or not depth:
            cache.window = self._keyer.keyed(cache.window)
        window, many = cache.window, nodes.shape[1]
        if not depth:
            return window.repeated(many)
        path = tree.path(nodes, depth).flatten(1, 2)  # [row, m · depth]
        keys = None
        if keeps:
            for above in range(depth):
                at = tree.path(nodes, depth)[..., above]
                self._key(cache, tree, at, above)
            keys = None if tree.keys is None else _apart(_taken(tree, path), depth)
        frames = take_nodes(tree.frames, path).unflatten(1, (many, depth)).flatten(0, 1)
        actions = tree.units.gather(1, path).unflatten(1, (many, depth)).flatten(0, 1)
        count, forget = torch.full_like(actions[:, 0], depth), self.denoiser.cache == "exact"
        made = window.repeated(many).then(frames, actions, keys, count, depth, self.most, forget)
        return self._keyer.keyed(made)

    @property
    def _keyer(self) -> Denoiser | CheckedDenoiser:
        """Whoever knows keys."""
        return self.denoiser if self.check is None else self.check.over(self.denoiser)

    def _keeps(self, window: Window, more: int) -> bool:
        """Whether keys are of any use behind so many more frames: `exact` computes those of a full window anew."""
        return self.denoiser.cache == "streaming" or (
            self.denoiser.cache == "exact" and window.held + more <= self.most
        )


def _taken(tree: FrameTree, nodes: Tensor) -> list[tuple[Tensor, Tensor]]:
    assert tree.keys is not None
    return [(take_nodes(k, nodes), take_nodes(v, nodes)) for k, v in tree.keys]


def _apart(pairs: Sequence[tuple[Tensor, Tensor]], depth: int) -> list[tuple[Tensor, Tensor]]:
    """`[row, m · depth, …]` to a row a node."""
    return [tuple(t.unflatten(1, (-1, depth)).flatten(0, 1) for t in pair) for pair in pairs]  # type: ignore[misc]
