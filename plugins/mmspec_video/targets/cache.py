"""The prompt of a call over denoised frames, and the call's cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec_video.deviation import Deviation
from mmspec_video.targets.tree import FrameTree
from mmspec_video.targets.window import Window


@dataclass(frozen=True)
class FramePrompt:
    """First frames and the first action.

    Attributes:
        frames: `[row, n, channel, height, width]` latents; `n` is at least 1.
        actions: `[row, n]` int64: the action that led to each frame; the model's "unknown" id where none is known.
        action: `[row]` int64: the player's first action, which leads to the first new frame.
        seed: Seed of the frames' noise: one for all rows, or one a row.
    """

    frames: Tensor
    actions: Tensor
    action: Tensor
    seed: int | Sequence[int] = 0


@dataclass
class FramesCache:
    """The state of a call over denoised frames.

    Attributes:
        key: `[row, 2]`: keys of the noise.
        window: The frames that the root's frame attends to.
        tree: Frames that were made since the last commit.
        denoised: Number of frames that the network made, discarded ones included.
        until: Called before every pass while frames are made ahead; True stops it.
        deviation: Altered frames, under a lossy rule.
    """

    key: Tensor
    window: Window
    tree: FrameTree | None = None
    denoised: int = 0
    until: Callable[[], bool] | None = None
    deviation: Deviation | None = None
