"""Recorded clips as a modality of `mmspec bench`: first frames and actions are given, the frames behind are made."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.bench.pipelines import Modality
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import folder_of, recorded

GIVEN = 2
"""First frames of a clip."""
FRAMES, QUICK_FRAMES = 24, 6
"""Most new frames of a clip."""


def clips() -> Modality:
    return Modality("video", "frame", "clip", calls, units)


def calls(pipe: Any, prompts: list[str] | int, short: bool) -> list[Mapping[str, Any]]:
    """A call for every clip.

    Raises:
        ValueError: The pipeline makes no frames after actions, there are no recorded clips beside it, or prompts are
            texts.
    """
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
