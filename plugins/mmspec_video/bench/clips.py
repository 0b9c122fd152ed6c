"""Held-out clips of the simulator, as everybody gets them: first frames, actions, and what really came."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec_video.bench.settings import AHEAD, GIVEN
from mmspec_video.codec import Codec
from mmspec_video.train.ship import CLIPS, DENOISED

STRIDE = 6
"""Frames between the places of a clip at which frames are compared with the simulator's."""


@dataclass(frozen=True)
class Recorded:
    """What was recorded.

    Attributes:
        frames: `[clip, frame, 3, height, width]` in [-1, 1].
        actions: `[clip, frame - 1]` int64: action `i` leads from frame `i` to frame `i + 1`.
    """

    frames: Tensor
    actions: Tensor


@dataclass(frozen=True)
class Task:
    """One clip to make.

    Attributes:
        first: `[1, n, …]`: first frames, as the transformer reads them.
        before: `[1, n - 1]`: what led from one to the next.
        actions: `[1, new]`: what leads to the new ones.
        last: `[3, height, width]` in [-1, 1]: the last of the first frames.
        truth: `[new, 3, height, width]` in [-1, 1]: what the simulator showed for the recorded actions.
        seed: Of the noise.
    """

    first: Tensor
    before: Tensor
    actions: Tensor
    last: Tensor
    truth: Tensor
    seed: int


def recorded(folders: Sequence[Path]) -> Recorded:
    """The clips beside one of some models; the shipped ones lie beside the denoising model.

    Raises:
        ValueError: There are none.
    """
    for folder in (*folders, *(folder.parent / DENOISED for folder in folders)):
        if (folder / CLIPS).is_file():
            with np.load(folder / CLIPS, allow_pickle=False) as held:
                frames, actions = torch.from_numpy(held["frames"]), torch.from_numpy(held["actions"])
            return Recorded(frames.permute(0, 1, 4, 2, 3).float() / 127.5 - 1, actions.long())
    raise ValueError(f"there are no recorded clips ({CLIPS}) beside {', '.join(folder.name for folder in folders)}")


def task_at(clips: Recorded, codec: Codec, most: int, clip: int, begin: int, new: int, seed: int, device: str) -> Task:
    """A part of a clip.

    Args:
        clips: All of them.
        codec: To what the transformer reads.
        most: First frames that it can begin with.
        clip: Which.
        begin: Number of the first of the first frames.
        new: Frames to make, at most: the clip ends where it ends.
        seed: Of the noise.
        device: Where the transformer is.
    """
    given = min(GIVEN, most)
    frames, actions = clips.frames[clip, begin:].to(device), clips.actions[clip, begin:].to(device)
    return Task(
        codec.encode(frames[:given])[None],
        actions[None, : given - 1],
        actions[None, given - 1 : given - 1 + new],
        frames[given - 1],
        frames[given : given + new],
        seed,
    )


def places(clips: Recorded, most: int) -> list[tuple[int, int]]:
    """Where frames are compared: clip, and the number of its first frame that is given."""
    last = clips.frames.shape[1] - min(GIVEN, most) - max(reach(clips, most))
    return [(clip, begin) for clip in range(len(clips.frames)) for begin in range(0, last + 1, STRIDE)]


def reach(clips: Recorded, most: int) -> list[int]:
    """How far ahead the clips let us look, of `AHEAD`."""
    return [n for n in AHEAD if n <= clips.frames.shape[1] - min(GIVEN, most)]
