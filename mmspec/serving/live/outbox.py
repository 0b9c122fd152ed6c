"""Messages on their way to one page: threads put them in without waiting, and a page that does not read loses them."""

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MOST = 256
"""Messages that wait for a page; of more, the oldest are dropped."""


class Outbox:
    """The messages to one page."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._waiting = loop, deque[Mapping[str, Any]](maxlen=MOST)
        self._there = asyncio.Event()

    def put(self, message: Mapping[str, Any]) -> None:
        """Add a message, from any thread."""
        self._waiting.append(message)
        with suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(self._there.set)

    async def next(self) -> Mapping[str, Any]:
        """The oldest message, as soon as there is one."""
        while not self._waiting:
            self._there.clear()
            if not self._waiting:
                await self._there.wait()
        return self._waiting.popleft()
