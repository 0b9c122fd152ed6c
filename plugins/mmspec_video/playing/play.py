"""What `FramePlay` and `TokenPlay` have in common."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from mmspec.core.report import Report


class Play(Protocol):
    """A call whose frames are made one by one; the rows' players act in step.

    Attributes:
        report: Counts and times.
        guesses: Whether frames are made ahead, for guessed actions.
        discarded: Frames that were made and not shown; frames that are still available count.
    """

    @property
    def report(self) -> Report: ...

    @property
    def guesses(self) -> bool: ...

    @property
    def discarded(self) -> int: ...

    def act(self, actions: Tensor) -> None:
        """Add the next actions `[row, n]`; each leads to one more frame."""
        ...

    def actions_of(self, frames: int) -> Tensor:
        """The actions `[row, frame]` that led to the first `frames` new frames."""
        ...

    def frame(self) -> Tensor:
        """The next frame `[row, …]`, in the transformer's codes or latents.

        Raises:
            ValueError: Its action is not known, or all frames were made.
        """
        ...

    def ahead(self, until: Callable[[], bool] | None = None) -> None:
        """Make frames for guesses of the next action; nothing where it is known, or where no frame is wanted.

        Args:
            until: Called before every pass: whether the action is there. A frame that is not finished then is dropped.
        """
        ...


def refuse_early(number: int, known: int, length: int) -> None:
    """Refuse to make a frame.

    Args:
        number: Number of the new frame, from 0 on.
        known: Known actions.
        length: New frames wanted.

    Raises:
        ValueError: The frame's action is not known, or no frame is left.
    """
    if number >= length:
        raise ValueError("no frame is left")
    if number >= known:
        raise ValueError(f"frame {number} has no action yet")
