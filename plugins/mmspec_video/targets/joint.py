"""Frames of several actions, denoised together: every step is one pass over all of them.

Next-Frame Diffusion's speculative sampling (arXiv 2506.01380, § 3.4). In every pass a frame sees the frames above it in
the draft as noisy as it is itself, where plain play has finished them: another sampler. A model of this kind can read
that, because every frame tells its own time (diffusion forcing, arXiv 2407.01392). The first frame sees nothing but
finished ones: it is plain's, whatever hangs on it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.distributions import where_nodes
from mmspec_video.targets.denoiser import Denoiser, StoppedError
from mmspec_video.targets.window import Window


@dataclass(frozen=True)
class Joint:
    """How frames of a draft are made under the rule `nfd`.

    Attributes:
        measure: Make every frame behind the first once more, as plain play would, and note how far off it was.
    """

    measure: bool = False
    says: ClassVar[str] = "denoised together with the one before"
    off: ClassVar[str] = "off by"


@dataclass(frozen=True)
class Block:
    """Frames to make together, nodes of a draft; node 0 is the root's.

    Attributes:
        actions: `[row, node]` int64.
        depth: `[row, node]` int64: from 0 on.
        above: `[row, node, node]` bool: which nodes each sees, itself included.
        frames: `[row, node, channel, height, width]`; read where they are there.
        there: `[row, node]` bool: finished ones. They stay, and are told to be finished.
    """

    actions: Tensor
    depth: Tensor
    above: Tensor
    frames: Tensor
    there: Tensor


def joint_frames(
    denoiser: Denoiser, window: Window, block: Block, key: Tensor, until: Callable[[], bool] | None = None
) -> Tensor:
    """Frames `[row, node, channel, height, width]` of a block.

    Args:
        denoiser: Steps and model.
        window: What the root's frame sees. Its keys serve all steps, whatever the cache: the frames are the same.
        block: The frames.
        key: `[row, 2]`: of the noise. A frame's noise is what plain play would give it.
        until: Asked before every pass.

    Raises:
        StoppedError: `until` says so.
    """
    sampler, number = denoiser.sampler, window.number[:, None] + block.depth
    window = replace(denoiser, cache="exact").keyed(window)
    seen = _seen(window, block, number, denoiser.model.window)

    def noise(step: int) -> Tensor:
        keys = key.repeat_interleave(number.shape[1], 0)
        return denoiser.noise(keys, number.flatten(), step).unflatten(0, number.shape)

    x = sampler.begin(noise(0))
    for step in range(sampler.steps):
        if until is not None and until():
            raise StoppedError
        x = where_nodes(block.there, block.frames, x)
        now = torch.full(number.shape, sampler.time(step), dtype=torch.float32, device=x.device)
        now = torch.where(block.there, sampler.context_time, now)
        out = denoiser.behind(window, x, now, block.actions, number, seen)
        fresh = noise(step + 1) if sampler.noisy and step < sampler.steps - 1 else None
        x = sampler.advance(x, out, step, fresh)
    return where_nodes(block.there, block.frames, x)


def _seen(window: Window, block: Block, number: Tensor, most: int) -> Tensor:
    """`[row, node, slot + node]`: what is there, stands above, and is no further back than the model looks."""
    nodes = number.shape[1]
    slots = window.there[:, None].expand(-1, nodes, -1)
    near = number[..., None] - torch.cat([window.position, number], 1)[:, None] < most
    return torch.cat([slots, block.above.expand(len(slots), -1, -1)], -1) & near
