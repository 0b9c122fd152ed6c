"""What a call over frames is given, and what it knows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec_video.deviation import Deviation
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
        deviation: Of frames that are not plain's, under a lossy rule.
    """

    key: Tensor
    window: Window
    tree: FrameTree | None = None
    made: int = 0
    until: Callable[[], bool] | None = None
    deviation: Deviation | None = None
