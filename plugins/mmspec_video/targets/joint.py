"""Joint denoising: the frames of several actions at once; every step is one pass over all of them.

Speculative sampling of Next-Frame Diffusion (arXiv 2506.01380, § 3.4). In every pass a frame attends to the frames
above it in the draft at their current noise level, where plain decoding has finished them: this is another sampler.
The model can read such frames because each has a time of its own (diffusion forcing, arXiv 2407.01392). The first frame
attends to finished frames only, so it equals plain decoding's, whatever is drafted behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions import where_nodes
from mmspec.core.tree import TreeIndex
from mmspec_video.deviation import Deviation
from mmspec_video.targets.denoiser import Denoiser, denoise
from mmspec_video.targets.tree import FrameTree
from mmspec_video.targets.window import Window


@dataclass(frozen=True)
class Joint:
    """Joint denoising under the rule `nfd`."""

    measure: bool = False  # make every frame after the first once more by plain decoding, and record the distance

    def deviation(self) -> Deviation:
        return Deviation("denoised together with the one before", "off by")


def joint_frames(
    denoiser: Denoiser,
    window: Window,
    tree: FrameTree,
    index: TreeIndex,
    key: Tensor,
    until: Callable[[], bool] | None = None,
) -> Tensor:
    """Frames `[row, node, channel, height, width]` of all nodes of a tree; available ones stay as they are.

    The window is what the root's frame attends to. Its keys are used in all steps, whatever the cache option: the
    frames are the same. The noise has keys `[row, 2]`: a frame's noise equals plain decoding's. `until` is called
    before every step; True stops (`StoppedError`).
    """
    number = window.number[:, None] + index.depth
    window = replace(denoiser, cache="exact").keyed(window)
    seen = _seen(window, index, number, denoiser.model.window)
    keys, available = key.repeat_interleave(number.shape[1], 0), tree.flags(tree.available)

    def noise(step: int) -> Tensor:
        return denoiser.noise(keys, number.flatten(), step).unflatten(0, number.shape)

    def predict(x: Tensor, time: float) -> Tensor:
        x = where_nodes(available, tree.frames, x)
        now = torch.full(number.shape, time, dtype=torch.float32, device=x.device)
        now = torch.where(available, denoiser.sampler.context_time, now)
        return denoiser.predict_after(window, x, now, tree.units, number, seen)

    return where_nodes(available, tree.frames, denoise(denoiser.sampler, noise, predict, until))


def _seen(window: Window, index: TreeIndex, number: Tensor, most: int) -> Tensor:
    """`[row, node, slot + node]` bool: filled slots and ancestors within the model's attention window."""
    slots = window.filled[:, None].expand(-1, number.shape[1], -1)
    near = number[..., None] - torch.cat([window.position, number], 1)[:, None] < most
    return torch.cat([slots, index.ancestor.expand(len(slots), -1, -1)], -1) & near
