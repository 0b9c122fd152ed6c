"""What all contestants draw."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.kits.pictures.bench import CAPTIONS
from mmspec.kits.pictures.conditions import Condition, Some


@dataclass(frozen=True)
class Task:
    """Pictures to draw in one call."""

    captions: Sequence[str]  # one a row, as text
    condition: Condition  # the captions as the target reads them
    seeds: tuple[int, ...]  # one a row


def tasks_of(pipe: Any, guidance: float, places: Sequence[int], seed: int) -> list[Task]:
    """One picture each: captions in turns, seeds that count up.

    Args:
        pipe: The pipeline, which encodes captions.
        guidance: Scale of guidance; 1 is none.
        places: Indices of the pictures.
        seed: Seed of the picture at place 0.
    """
    pipe.guidance_scale = guidance  # the conditions of continuous targets hold the scale
    tasks = []
    for place in places:
        caption = CAPTIONS[place % len(CAPTIONS)]
        tasks.append(Task([caption], pipe.encode_prompt(caption, guided=guidance != 1), (seed + place,)))
    return tasks


def joined(tasks: Sequence[Task]) -> Task:
    """Several pictures in one call."""
    condition = joined_conditions([task.condition for task in tasks])
    return Task([c for task in tasks for c in task.captions], condition, tuple(s for task in tasks for s in task.seeds))


def joined_conditions(conditions: Sequence[Some]) -> Some:
    """Several conditions in one batch, row by row; a number that they do not share becomes one a row.

    Raises:
        ValueError: Only some conditions have a mask, a null condition of their own, or guidance.
    """
    together = dict[str, Any]()
    for name in (field.name for field in fields(conditions[0])):
        values = [getattr(condition, name) for condition in conditions]
        if not any(isinstance(value, Tensor) for value in values) and len(set(values)) == 1:
            continue
        if any(value is None or isinstance(value, bool) for value in values):
            raise ValueError(f"a batch has {name} for all of its rows or for none, and here only some have it")
        together[name] = torch.cat([_by_row(*both) for both in zip(values, conditions, strict=True)])
    return replace(conditions[0], **together)


def _by_row(value: Tensor | float, condition: Condition) -> Tensor:
    """`[batch, …]` of a value that may be one number for all rows."""
    given = condition.given
    value = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float32, device=given.device)
    return value if value.dim() else value.expand(len(given))


def groups(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """The tasks in groups of `size`."""
    return [tasks[first : first + size] for first in range(0, len(tasks), size)]
