"""Find the consistency student of a model; refuse one that does not fit.

What a consistency student learns fits into a twentieth of the teacher's weights (as LCM-LoRA found, arXiv 2311.05556),
so a student is shipped as a small file beside its teacher: low-rank differences of matrices (LoRA, 2106.09685).
"""

import copy
from pathlib import Path
from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import nn

from mmspec.hosts.loading import load_part
from mmspec_video.models.next_frame import NextFrameDiT


class StudentAdapter(ModelMixin, ConfigMixin):
    """The low-rank differences of a student, by the names of the teacher's weight matrices and their `shapes`,
    `{"blocks.0.attn.to_qkv": [outputs, inputs], …}`; it takes `steps` from noise to a frame.
    """

    @register_to_config
    def __init__(self, shapes: dict[str, list[int]], rank: int = 8, steps: int = 2) -> None:
        super().__init__()
        self.down = nn.ParameterDict({key_of(name): torch.zeros(rank, shape[1]) for name, shape in shapes.items()})
        self.up = nn.ParameterDict({key_of(name): torch.zeros(shape[0], rank) for name, shape in shapes.items()})

    def student(self, teacher: NextFrameDiT) -> NextFrameDiT:
        """A copy of the teacher with the differences added: a consistency model."""
        own = {name: list(layer.weight.shape) for name, layer in matrices_of(teacher).items()}
        if own != {name: list(shape) for name, shape in self.config.shapes.items()}:
            raise ValueError("this student was learned from another teacher: its matrices have other names or shapes")
        student = copy.deepcopy(teacher)
        student.register_to_config(objective="consistency", steps=self.config.steps)
        for name, layer in matrices_of(student).items():
            difference = self.up[key_of(name)].float() @ self.down[key_of(name)].float()
            layer.weight.data.add_(difference.to(layer.weight))
        return student.eval()


def matrices_of(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of the blocks and of the final layer, by name."""
    named = model.named_modules()
    return {n: m for n, m in named if isinstance(m, nn.Linear) and n.startswith(("blocks.", "final_layer."))}


def key_of(name: str) -> str:
    return name.replace(".", "/")  # a dot in a name would separate modules


FOLDER = "student"  # the student's folder inside of a pipeline's folder
FITTING = ("channels", "height", "width", "actions", "frames")
"""Configuration values that a student shares with its teacher."""


def refuse_teacher(teacher: Any) -> None:
    """Refuse a model that has no student."""
    if not isinstance(teacher, NextFrameDiT) or teacher.config.objective != "flow":
        kind = type(teacher).__name__
        what = "is a student itself" if isinstance(teacher, NextFrameDiT) else f"is of another kind ({kind})"
        raise ValueError(
            f"a student is a NextFrameDiT's that was trained by flow matching, and this model {what}; "
            "use 'branch-prediction' or 'plain', which are exact"
        )


def student_of(teacher: Any, given: NextFrameDiT | StudentAdapter | str | Path | None) -> NextFrameDiT:
    """The student of a teacher, on its device: as given (a student, its adapter, or the adapter's folder), or from the
    folder `student` beside the model.
    """
    refuse_teacher(teacher)
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
        "this model has no student beside it: make one with `mmspec train student`, and say student=, an adapter or "
        "its folder"
    )


def _loaded(folder: Path) -> StudentAdapter:
    if not (folder / "config.json").is_file():
        raise ValueError(f"there is no student in {folder}; `mmspec train student` writes one")
    return load_part(StudentAdapter, folder, torch.float32)
