"""Players whose answers wait for events instead of a clock."""

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Thinkers:
    """Players who answer as soon as a frame was made ahead.

    The pipeline guesses one action ahead (`k=1`), so that there is one such frame an answer, but for the first one.
    """

    def __init__(self) -> None:
        self._watched: list[Any] = []

    def player(self, pipe: Any, trace: Sequence[Any]) -> Callable[[int, Any], Any]:
        """A player of `pipe` who answers `trace[0], trace[1], …`."""
        target, ready = pipe.decoder().target, threading.Event()
        verify = target.verify

        def seen(cache: Any, draft: Any, first: int = 0) -> Any:
            scored = verify(cache, draft, first)
            if draft.nodes > 1:
                ready.set()
            return scored

        def answer(number: int, frames: Any) -> Any:
            if number:
                ready.wait()
                ready.clear()
            return trace[number]

        target.verify = seen
        self._watched.append(target)
        return answer

    def leave(self) -> None:
        """Restore the targets."""
        while self._watched:
            del self._watched.pop().verify
