"""The prompt of a call over denoised frames, and the call's cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec_video.deviation import Deviation
from mmspec_video.targets.tree import FrameTree
from mmspec_video.targets.window import Window


@dataclass(frozen=True)
class FramePrompt:
    """First frames and the first action."""

    frames: Tensor  # `[row, n, channel, height, width]` latents; `n` is at least 1
    actions: Tensor  # `[row, n]` int64: the action that led to each frame; the model's "unknown" id where none is known
    action: Tensor  # `[row]` int64: the player's first action, which leads to the first new frame
    seed: int | Sequence[int] = 0  # seed of the frames' noise: one for all rows, or one a row


@dataclass
class FramesCache:
    """The state of a call over denoised frames."""

    key: Tensor  # `[row, 2]`: keys of the noise
    window: Window  # the frames that the root's frame attends to
    tree: FrameTree | None = None  # frames that were made since the last commit
    denoised: int = 0  # number of frames that the network made, discarded ones included
    until: Callable[[], bool] | None = None  # called before every pass while frames are made ahead; True stops it
    deviation: Deviation | None = None  # altered frames, under a lossy rule
