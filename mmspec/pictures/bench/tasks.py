"""What everybody is asked to draw."""

from collections.abc import Sequence
from dataclasses import dataclass

from mmspec.pictures import conditions
from mmspec.pictures.conditions import Condition


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
    condition = conditions.joined([task.condition for task in tasks])
    return Task([c for task in tasks for c in task.captions], condition, tuple(s for task in tasks for s in task.seeds))


def parts(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """The tasks in groups of so many."""
    return [tasks[first : first + size] for first in range(0, len(tasks), size)]
