"""What everybody is asked to draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmspec_image.targets.llamagen import Condition


@dataclass(frozen=True)
class Task:
    """Pictures to draw in one call.

    Attributes:
        captions: One a row.
        condition: The same for the target.
        seeds: One a row.
    """

    captions: Sequence[str]
    condition: Condition
    seeds: tuple[int, ...]


def joined(tasks: Sequence[Task]) -> Task:
    """Several pictures in one call."""
    of = [task.condition for task in tasks]
    fields = {name: _cat([getattr(one, name) for one in of]) for name in ("given", "mask", "null", "null_mask")}
    condition = Condition(**fields, guided=of[0].guided)
    return Task([c for task in tasks for c in task.captions], condition, tuple(s for task in tasks for s in task.seeds))


def parts(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """The tasks in groups of so many."""
    return [tasks[first : first + size] for first in range(0, len(tasks), size)]


def _cat(values: Sequence[Any]) -> Any:
    return None if values[0] is None else torch.cat(values)
