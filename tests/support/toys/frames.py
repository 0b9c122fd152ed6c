"""Toy world model: frames from actions. The next unit is the player's action, so that the truth comes later.

There is no distribution to draw from: `speculate` renders frames for guessed actions, `settle(…, truth=actions)` keeps
those that the player confirmed. A frame is computed from the last frame, an action and noise by the frame's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import External, PointMass, take_nodes
from mmspec.core.philox import PhiloxNoise, PhiloxSource
from mmspec.core.types import Draft, Prefill, TargetOutput


@dataclass(frozen=True)
class Scene:
    """A prompt: `frame [batch, size]`, the first `action [batch]` int64, and the `seed` of the frames' noise."""

    frame: Tensor
    action: Tensor
    seed: int | Sequence[int] = 0


@dataclass
class FramesCache:
    """The state of a call."""

    key: Tensor  # `[batch, 2]`: the key of the noise
    frame: Tensor  # `[batch, size]`: the last committed frame
    length: Tensor  # `[batch]`: how many frames are committed
    coming: Tensor  # `[batch, size]`: the root's frame, valid where `ready`
    ready: Tensor  # `[batch]` bool: whether the truth was drafted, so that the root's frame is rendered already
    frames: Tensor  # `[batch, node, size]`: frames of the last pass
    rendered: Tensor  # `[batch]`: how many frames were rendered in all


class FramesTarget:
    """frame' = tanh(decay · roll(frame) + effect[action] + noise).

    Args:
        effect: `[vocab, size]`: what each action adds to a frame.
    """

    offers = frozenset({"discrete", "tree", "grow"})

    def __init__(self, effect: Tensor) -> None:
        self.effect = effect
        self.vocab: int | None = len(effect)

    @classmethod
    def random(cls, vocab: int, seed: int, size: int = 5) -> "FramesTarget":
        """Gaussian effects."""
        return cls(torch.randn(vocab, size, generator=torch.Generator().manual_seed(seed)))

    def start(self, inputs: Scene, limit: int, width: int) -> Prefill:
        """The first action is a point mass: it becomes the first unit, whose frame the first pass renders."""
        rows = len(inputs.frame)
        zero = torch.zeros(rows, dtype=torch.int64)
        key = PhiloxSource.seeded(inputs.seed, rows).key
        cache = FramesCache(key, inputs.frame, zero, inputs.frame, zero.bool(), inputs.frame[:, None], zero)
        return Prefill(
            cache, TargetOutput(distribution=PointMass(inputs.action[:, None])), inputs.action[:, None][:, :0], zero
        )

    def verify(self, cache: FramesCache, draft: Draft, first: int = 0) -> TargetOutput:
        index = draft.index
        number = cache.length[:, None] + index.depth
        noise = PhiloxNoise(cache.key, number, torch.zeros_like(number[:, :1])).normal(self.effect.shape[1])
        effect = self.effect[draft.units] + noise / 4
        root = torch.where(cache.ready[:, None], cache.coming, self._render(cache.frame, effect[:, 0]))
        frames = root[:, None].expand(-1, draft.nodes, -1)
        for depth in range(1, index.deepest + 1):
            before = take_nodes(frames, index.parent.clamp(min=0))
            frames = torch.where((index.depth == depth)[..., None], self._render(before, effect), frames)
        cache.frames = frames
        new = draft.valid[:, first:].sum(1)
        cache.rendered = cache.rendered + (new if first else new - cache.ready.long())
        return TargetOutput(distribution=External(draft.units[:, first:]), auxiliary=frames[:, first:])

    def commit(self, cache: FramesCache, path: Tensor, count: Tensor) -> None:
        # Node of every unit from the root on; -1 where a unit was not drafted.
        nodes = torch.nn.functional.pad(torch.nn.functional.pad(path, (1, 0), value=0), (0, 1), value=-1)
        last = nodes.gather(1, (count - 1).clamp(min=0)[:, None])
        root = nodes.gather(1, count[:, None])
        active = (count > 0)[:, None]
        cache.frame = torch.where(active, take_nodes(cache.frames, last)[:, 0], cache.frame)
        cache.ready = (active & (root >= 0))[:, 0]
        cache.coming = torch.where(cache.ready[:, None], take_nodes(cache.frames, root.clamp(min=0))[:, 0], cache.frame)
        cache.frames = cache.frame[:, None]
        cache.length = cache.length + count

    def truncate(self, cache: FramesCache, length: Tensor) -> None:
        raise NotImplementedError("a world keeps its last frame only; it cannot go back")

    @staticmethod
    def _render(frame: Tensor, effect: Tensor) -> Tensor:
        return torch.tanh(0.8 * frame.roll(1, -1) + effect)
