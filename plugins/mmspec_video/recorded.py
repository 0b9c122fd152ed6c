"""Recorded clips beside the shipped models: what the simulator of their world answered."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.hosts.loading import locate_pipeline

TOKENS, DENOISED, STUDENT = "four-courts-tokens", "four-courts", "student"
"""Folders of the shipped models; the student's is inside of its teacher's."""
CLIPS, TOUR_CLIP = "clips.npz", "tour.npz"
"""Held-out clips, and one of a walk through all of the world; in the denoising model's folder."""


@dataclass(frozen=True)
class RecordedClips:
    frames: Tensor  # `[clip, frame, 3, height, width]` in [-1, 1]
    actions: Tensor  # `[clip, frame - 1]` int64: action `i` leads from frame `i` to frame `i + 1`


def folder_of(name: str) -> Path:
    """The folder of a pipeline that was loaded."""
    folder = locate_pipeline(name)
    assert folder is not None, "a pipeline that is not on this machine is refused when it is loaded"
    return folder


def recorded(folders: Sequence[Path], name: str = CLIPS) -> RecordedClips:
    """The clips in the folder of a model, or of the shipped denoising model beside it: held-out ones, or the tour
    (`TOUR_CLIP`).

    Raises:
        ValueError: None of the folders has clips.
    """
    for folder in (*folders, *(folder.parent / DENOISED for folder in folders)):
        if (folder / name).is_file():
            with np.load(folder / name, allow_pickle=False) as file:
                frames, actions = torch.from_numpy(file["frames"]), torch.from_numpy(file["actions"])
            return RecordedClips(frames.permute(0, 1, 4, 2, 3).float() / 127.5 - 1, actions.long())
    raise ValueError(f"there are no recorded clips ({name}) beside {', '.join(folder.name for folder in folders)}")
