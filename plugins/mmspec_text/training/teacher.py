"""A target's answers about a text: the features that a head reads, and its distribution behind every unit.

A target is half of a step's work, and more. Sequences that come again in a run are read once: what the target said is
kept on the disk, `features · 2 + TOP · 6` bytes a unit.
"""

import mmap
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmspec.core.out_of_memory import out_of_memory
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.features import Reading
from mmspec.training.losses import Top

TOP = 64
"""Units of a distribution that a drafter learns, the likeliest ones."""
SPARE = 2
"""So many times the space that it needs is free where something is kept."""


class Said(NamedTuple):
    """A target's answers about texts."""

    features: Tensor  # `[batch, unit, width]`
    top: Top  # of its distribution behind every unit, over the ids that a head scores, `[batch, unit, k]`


class Teacher:
    """A target that is read and never changed.

    The live model is in evaluation mode; its states at `boundaries` are the features; (): none.
    """

    def __init__(self, model: Any, boundaries: Sequence[int] = ()) -> None:
        target = own_target(model)
        if boundaries:
            target.with_hidden(boundaries)  # refuses those that there are not
        self.model, self._model_info, self._boundaries = target.model, target.model_info, tuple(boundaries)
        self._mixed = True
        self._mixed = self._runs_mixed()

    def _runs_mixed(self) -> bool:
        """True if the target runs under autocast, in which a drafter learns: some models of experts do not."""
        device = self.model.device
        try:
            with torch.autocast(device.type, torch.bfloat16):
                self(torch.zeros(1, 2, dtype=torch.int64, device=device))
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            return False
        return True

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor | None, Tensor]:
        """The features `[batch, unit, width]` of `ids [batch, unit]`, or None; and logits `[batch, unit, vocab]`,
        float32.
        """
        device = self.model.device.type
        mixed = torch.autocast(device, torch.bfloat16, enabled=self._mixed and torch.is_autocast_enabled(device))
        with Reading(self._model_info, self._boundaries) as reading, mixed:
            logits = self.model(input_ids=ids, use_cache=False).logits
        return reading.states, logits.float()

    @torch.no_grad()
    def said(self, ids: Tensor, own: Tensor | None) -> Said:
        """A head's lesson from `ids [batch, unit]`.

        `own` are the target's ids that the head scores, `[draft vocabulary]` int64, ascending; None: all. Probabilities
        are of the whole vocabulary.
        """
        features, logits = self(ids)
        assert features is not None
        p = logits.softmax(-1)
        p = p if own is None else p[..., own]
        return Said(features, Top(*p.topk(min(TOP, p.shape[-1]))))


class Kept:
    """A teacher that reads a sequence once, and keeps it in files of `folder` that have no name there and vanish with
    the process.
    """

    def __init__(self, teacher: Teacher, folder: Path, sequences: int, units: int) -> None:
        self._teacher, self._folder, self._shape = teacher, folder, (sequences, units)
        self._places: dict[bytes, int] = {}
        self._files: tuple[Tensor, ...] = ()

    def said(self, ids: Tensor, own: Tensor | None) -> Said:
        """As `Teacher.said`; padding may say something else."""
        keys = [row.numpy().tobytes().rstrip(b"\0") for row in ids.cpu()]  # padding is 0
        new = [row for row, key in enumerate(keys) if key not in self._places]
        if new:
            features, top = self._teacher.said(ids[new], own)
            said = (features, top.p, top.ids)
            if not self._files:
                kinds = (torch.bfloat16, torch.float16, torch.int32)
                made = zip(said, kinds, strict=True)
                self._files = tuple(mapped(self._folder, kind, *self._shape, part.shape[-1]) for part, kind in made)
            for number, row in enumerate(new):
                place = self._places.setdefault(keys[row], len(self._places))
                for file, part in zip(self._files, said, strict=True):
                    file[place, : ids.shape[1]] = part[number]
        places = torch.tensor([self._places[key] for key in keys])
        features, p, units = (file[places, : ids.shape[1]].to(ids.device) for file in self._files)
        return Said(features, Top(p.float(), units.long()))


def mapped(folder: Path, dtype: torch.dtype, *shape: int) -> Tensor:
    """Zeros in a file without a name, in a folder with room for it."""
    with TemporaryFile(dir=folder) as file:
        size = torch.Size(shape).numel() * dtype.itemsize
        file.truncate(size)
        if sys.platform == "linux":  # take the space now: on a full disk, a write to a mapped file ends the process
            os.posix_fallocate(file.fileno(), 0, size)
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=dtype).view(shape)


def room_for(folder: Path, sequences: int, units: int, width: int) -> int | None:
    """Bytes of what a target says of sequences of at most so many units, with `width` features; None: too many here."""
    size = sequences * units * (2 * width + 6 * TOP)
    return size if SPARE * size <= shutil.disk_usage(folder).free else None
