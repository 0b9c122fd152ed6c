"""Recorded clips beside the shipped models: what the simulator of their world answered.

They are a modality of `mmspec bench`, too: first frames and actions are given, the frames behind are made.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.api.stored import Stored
from mmspec.bench.pipelines import Modality
from mmspec.registry.printable import shown
from mmspec_video.pipeline import NextFramePipeline

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
    stored = Stored.named(name)
    assert stored is not None, "a pipeline that is not on this machine is refused when it is loaded"
    return stored.folder


def clips_in(path: Path) -> RecordedClips:
    """The clips of a file: `frames` `[clip, frame, height, width, 3]` uint8, `actions` `[clip, frame - 1]`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            frames, actions = torch.from_numpy(file["frames"]), torch.from_numpy(file["actions"])
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{shown(path)} has no clips: it is a .npz with the arrays frames and actions") from error
    if frames.dtype != torch.uint8 or frames.dim() != 5 or frames.shape[-1] != 3:
        raise ValueError(f"{shown(path)}: frames are [clip, frame, height, width, 3] uint8, not {list(frames.shape)}")
    if actions.shape != (len(frames), frames.shape[1] - 1):
        raise ValueError(f"{shown(path)}: actions are [clip, frame - 1], one between two frames: {list(actions.shape)}")
    return RecordedClips(frames.permute(0, 1, 4, 2, 3).float() / 127.5 - 1, actions.long())


def recorded(folders: Sequence[Path], name: str = CLIPS) -> RecordedClips:
    """The clips in the folder of a model, or of the shipped denoising model beside it: held-out ones, or the tour
    (`TOUR_CLIP`).
    """
    for folder in (*folders, *(folder.parent / DENOISED for folder in folders)):
        if (folder / name).is_file():
            return clips_in(folder / name)
    raise ValueError(f"there are no recorded clips ({name}) beside {', '.join(folder.name for folder in folders)}")


GIVEN = 2  # first frames of a clip
FRAMES, QUICK_FRAMES = 24, 6  # most new frames of a clip


def clips() -> Modality:
    return Modality("video", "frame", "clip", calls, units)


def calls(pipe: Any, prompts: list[str] | int, short: bool) -> list[Mapping[str, Any]]:
    """A call for every clip."""
    name = pipe.config._name_or_path
    if not isinstance(pipe, NextFramePipeline):
        raise ValueError(f"{name} makes no frames after actions: it is a {type(pipe).__name__}")
    if not isinstance(prompts, int):
        raise ValueError("a world model goes on with recorded clips: --prompts is how many of them")
    kept, until = recorded([folder_of(name)]), GIVEN - 1 + (QUICK_FRAMES if short else FRAMES)
    frames, actions = (kept.frames + 1) / 2, kept.actions
    return [
        {
            "first_frames": frames[n : n + 1, :GIVEN],
            "past_actions": actions[n : n + 1, : GIVEN - 1],
            "actions": actions[n : n + 1, GIVEN - 1 : until],
        }
        for n in range(1 if short else min(prompts, len(frames)))
    ]


def units(output: Any) -> list[Tensor]:
    return [row.cpu() for row in output[0]]
