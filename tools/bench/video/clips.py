"""Held-out clips of the simulator as tasks: first frames, actions, and the simulator's next frames."""

from dataclasses import dataclass

from torch import Tensor

from mmspec_video.recorded import RecordedClips
from tools.bench.video.settings import AHEAD, GIVEN

STRIDE = 6
"""Frames between the positions of a clip at which frames are compared with the simulator's."""


@dataclass(frozen=True)
class Task:
    """One clip to make."""

    first: Tensor  # `[1, n, …]`: first frames, in the transformer's codes or latents
    before: Tensor  # `[1, n - 1]`: the actions between them
    actions: Tensor  # `[1, new]`: the actions that lead to the new frames
    last: Tensor  # `[3, height, width]` in [-1, 1]: the last of the first frames
    truth: Tensor  # `[new, 3, height, width]` in [-1, 1]: the simulator's frames for the recorded actions
    seed: int  # seed of the noise


def places(clips: RecordedClips, most: int) -> list[tuple[int, int]]:
    """Where frames are compared: pairs of a clip and the number of its first frame."""
    last = clips.frames.shape[1] - min(GIVEN, most) - max(reach(clips, most))
    return [(clip, begin) for clip in range(len(clips.frames)) for begin in range(0, last + 1, STRIDE)]


def reach(clips: RecordedClips, most: int) -> list[int]:
    """The distances of `AHEAD` that the clips are long enough for."""
    return [n for n in AHEAD if n <= clips.frames.shape[1] - min(GIVEN, most)]
