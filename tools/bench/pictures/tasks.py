"""What all contestants draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.kits.pictures import conditions
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.example_captions import CAPTIONS


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
    condition = conditions.joined([task.condition for task in tasks])
    return Task([c for task in tasks for c in task.captions], condition, tuple(s for task in tasks for s in task.seeds))


def groups(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """The tasks in groups of `size`."""
    return [tasks[first : first + size] for first in range(0, len(tasks), size)]
