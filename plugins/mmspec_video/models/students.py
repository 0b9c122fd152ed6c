"""Find the consistency student of a model; refuse one that does not fit."""

from pathlib import Path
from typing import Any

import torch

from mmspec.hosts.stored_pipeline import load_part
from mmspec_video.models.adapter import StudentAdapter
from mmspec_video.models.next_frame import NextFrameDiT

FOLDER = "student"
"""The student's folder inside of a pipeline's folder."""
FITTING = ("channels", "height", "width", "actions", "frames")
"""Configuration values that a student shares with its teacher."""


def student_of(teacher: Any, given: NextFrameDiT | StudentAdapter | str | Path | None) -> NextFrameDiT:
    """The student of a model, on its device.

    Args:
        teacher: The model whose frames the student drafts.
        given: A student, its adapter, or the adapter's folder; None: the folder `student` beside the model.

    Raises:
        ValueError: The model cannot be a teacher, there is no student, or the student does not fit the model.
        TypeError: `given` is none of these.
    """
    if not isinstance(teacher, NextFrameDiT) or teacher.config.objective != "flow":
        kind = type(teacher).__name__
        what = "is a student itself" if isinstance(teacher, NextFrameDiT) else f"is of another kind ({kind})"
        raise ValueError(
            f"a student is a NextFrameDiT's that was trained by flow matching, and this model {what}; "
            "use 'branch-prediction' or 'plain', which are exact"
        )
    if given is None or isinstance(given, str | Path):
        given = _loaded(_folder(teacher) if given is None else Path(given))
    if isinstance(given, StudentAdapter):
        return given.student(teacher).requires_grad_(False)
    if not isinstance(given, NextFrameDiT):
        raise TypeError(f"a student is a StudentAdapter, a NextFrameDiT or a folder, not {type(given).__name__}")
    if given.config.objective != "consistency":
        raise ValueError(f"a student was trained for 'consistency', and this model for {given.config.objective!r}")
    other = [name for name in FITTING if given.config[name] != teacher.config[name]]
    if other:
        pairs = ", ".join(f"{name} {given.config[name]} and {teacher.config[name]}" for name in other)
        raise ValueError(f"this student does not fit its teacher: {pairs}")
    return given


def _folder(teacher: NextFrameDiT) -> Path:
    name = getattr(teacher.config, "_name_or_path", "")
    for place in (Path(name), Path(name).parent) if name else ():
        if (place / FOLDER / "config.json").is_file():
            return place / FOLDER
    raise ValueError(
        "this model has no student beside it: make one with `python -m tools.train video --distill`, or say student=, "
        "an adapter or its folder"
    )


def _loaded(folder: Path) -> StudentAdapter:
    if not (folder / "config.json").is_file():
        raise ValueError(f"there is no student in {folder}; `python -m tools.train video --distill` writes one")
    adapter: StudentAdapter = load_part(StudentAdapter, folder, torch.float32)
    return adapter
