"""A text while it is written: an iterator over its pieces."""

from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

import torch

from mmspec.api.stops import Pieces
from mmspec.core.state import State

Output = TypeVar("Output")


class TextStream(Iterator[str], Generic[Output]):
    """The pieces of one text; the model runs as they are asked for.

    Args:
        rounds: The rounds of the call.
        pieces: The text as far as it is shown.
        finish: Makes the call's output of its last state.

    Attributes:
        output: The call's output; None until the last piece came.

    Example:
        `for piece in pipe("def area(", stream=True): print(piece, end="")`
    """

    def __init__(self, rounds: Generator[State, None, None], pieces: Pieces, finish: Callable[[State], Output]) -> None:
        self._rounds, self._pieces, self._finish = rounds, pieces, finish
        self._state: State | None = None
        self.output: Output | None = None

    def __next__(self) -> str:
        while self.output is None:
            with torch.no_grad():  # around each round: a caller's code in between is no business of ours
                state = next(self._rounds, None)
                if state is None:
                    assert self._state is not None, "a call has at least its prefill"
                    state, self.output = self._state, self._finish(self._state)
                self._state = state
                piece = self._pieces.more(state.output()[0], self.output is not None)
            if piece:
                return piece
        raise StopIteration

    def close(self) -> None:
        """Stop the call, which then has no output."""
        self._rounds.close()
