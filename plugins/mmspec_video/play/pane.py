"""One of the pictures on the page: a walk by one method, in a thread of its own, which makes a frame for every key."""

import time
from collections import deque
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

from PIL.Image import Image
from torch import Tensor

from mmspec.serving.live.pictures import png
from mmspec.serving.live.stage import Send
from mmspec_video.pipeline import NextFramePipeline

LONGEST = 2000
"""Frames of a walk; then a new one begins."""
PENDING = 16
"""Keys that may wait for their frames."""


class Pane:
    """A walk.

    Args:
        number: Which of the pictures it is.
        pipe: Makes the frames.
        first: `[3, height, width]` in [0, 1]: the frame that the walk begins with.
        seed: Of the noise.
        send: Takes messages to the page.

    Attributes:
        frames: The frames so far.
    """

    def __init__(self, number: int, pipe: NextFramePipeline, first: Tensor, seed: int, send: Send) -> None:
        self._number, self._pipe, self._first, self._seed, self._send = number, pipe, first, seed, send
        self.frames: list[Image] = []
        self._keys: SimpleQueue[str | None] = SimpleQueue()
        self._pressed: deque[float] = deque()
        self._quit = False
        self._thread = Thread(target=self._walk, name=f"pane {number}", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether no further key can wait."""
        return len(self._pressed) >= PENDING

    def press(self, action: str) -> None:
        """Ask for the frame behind an action."""
        self._pressed.append(time.perf_counter())
        self._keys.put(action)

    def leave(self) -> None:
        """End the walk; its thread ends with the frame that it is making."""
        self._quit = True
        self._keys.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(seconds)

    def _player(self, number: int, frames: Tensor) -> str | None:
        return None if self._quit else self._keys.get()

    def _walk(self) -> None:
        stream, hits = None, 0
        try:
            stream = self._pipe.stream(self._first[None], self._player, num_frames=LONGEST, seed=self._seed)
            for pictures in stream:
                wait = time.perf_counter() - self._pressed.popleft()
                if self._quit:
                    return
                accepted, passes = stream.report.accepted, stream.passes
                self.frames.append(pictures[0])
                hit = passes is None and accepted > hits  # of codes, `accepted` counts codes: none was there before
                told = {"hit": hit, "discarded": stream.discarded, "passes": passes}
                self._tell("frame", wait=wait, png=png(pictures[0]), **told)
                hits = accepted
            self._tell("over", frames=len(self.frames))
        except Exception as error:  # the page is told, whatever it was
            self._tell("error", says=f"{type(error).__name__}: {error}")

    def _tell(self, kind: str, **more: Any) -> None:
        if not self._quit:
            message: Mapping[str, Any] = {"type": kind, "pane": self._number, "number": len(self.frames), **more}
            self._send(message)
