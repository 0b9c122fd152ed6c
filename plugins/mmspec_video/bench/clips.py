"""Held-out clips of the simulator as tasks: first frames, actions, and the simulator's next frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec_video.bench.settings import AHEAD, GIVEN
from mmspec_video.train.recipe import CLIPS, DENOISED

STRIDE = 6
"""Frames between the positions of a clip at which frames are compared with the simulator's."""


@dataclass(frozen=True)
class RecordedClips:
    """Clips of the simulator."""

    frames: Tensor  # `[clip, frame, 3, height, width]` in [-1, 1]
    actions: Tensor  # `[clip, frame - 1]` int64: action `i` leads from frame `i` to frame `i + 1`


@dataclass(frozen=True)
class Task:
    """One clip to make."""

    first: Tensor  # `[1, n, …]`: first frames, in the transformer's codes or latents
    before: Tensor  # `[1, n - 1]`: the actions between them
    actions: Tensor  # `[1, new]`: the actions that lead to the new frames
    last: Tensor  # `[3, height, width]` in [-1, 1]: the last of the first frames
    truth: Tensor  # `[new, 3, height, width]` in [-1, 1]: the simulator's frames for the recorded actions
    seed: int  # seed of the noise


def recorded(folders: Sequence[Path], name: str = CLIPS) -> RecordedClips:
    """The clips in the folder of a model, or of the shipped denoising model beside it.

    Args:
        folders: Folders of models.
        name: The file: held-out clips, or the tour (`TOUR_CLIP`).

    Raises:
        ValueError: None of the folders has clips.
    """
    for folder in (*folders, *(folder.parent / DENOISED for folder in folders)):
        if (folder / name).is_file():
            with np.load(folder / name, allow_pickle=False) as file:
                frames, actions = torch.from_numpy(file["frames"]), torch.from_numpy(file["actions"])
            return RecordedClips(frames.permute(0, 1, 4, 2, 3).float() / 127.5 - 1, actions.long())
    raise ValueError(f"there are no recorded clips ({name}) beside {', '.join(folder.name for folder in folders)}")


def places(clips: RecordedClips, most: int) -> list[tuple[int, int]]:
    """Where frames are compared: pairs of a clip and the number of its first frame."""
    last = clips.frames.shape[1] - min(GIVEN, most) - max(reach(clips, most))
    return [(clip, begin) for clip in range(len(clips.frames)) for begin in range(0, last + 1, STRIDE)]


def reach(clips: RecordedClips, most: int) -> list[int]:
    """The distances of `AHEAD` that the clips are long enough for."""
    return [n for n in AHEAD if n <= clips.frames.shape[1] - min(GIVEN, most)]
