"""What belongs to one request wherever it is worked on: its seed, whether its client has gone, whether it has begun.

transformers' handlers hand on a body and nothing else; a context variable carries the rest to the thread that decodes.
"""

import asyncio
import secrets
import threading
from contextvars import ContextVar
from typing import Any

from transformers.cli.serving.utils import _GenerationCancelled

from mmspec.registry.numbers import whole

MOST = 2**63
"""Seeds are smaller than this."""


class ClientGone(_GenerationCancelled):
    """The client has closed its connection: nobody waits for the rest. transformers' streams end quietly on it."""


class Request:
    """One request.

    Attributes:
        seed: Of the request's own noise; drawn from the operating system unless the client names one.
    """

    def __init__(self) -> None:
        self.seed = secrets.randbits(62)
        self._gone = threading.Event()
        self._begun: asyncio.Future[None] | None = None

    def seeded(self, seed: Any) -> None:
        """Take the client's seed; None leaves the one that was drawn.

        Raises:
            ValueError: It is no integer from 0 on, or larger than 63 bits.
        """
        if seed is not None:
            if whole("seed", seed) >= MOST:
                raise ValueError(f"seed is smaller than 2^63, and {seed} is not")
            self.seed = int(seed)

    def leave(self) -> None:
        """The client has gone; what is decoded for it stops after its round."""
        self._gone.set()

    def go_on(self) -> None:
        """Asked before decoding begins, and after every round of it.

        Raises:
            ClientGone: There is nobody to go on for.
        """
        if self._gone.is_set():
            raise ClientGone("the client has closed the connection")

    def stream(self) -> None:
        """The answer will be a stream: `begun` has to wait until it is clear that the call is not refused."""
        self._begun = asyncio.get_running_loop().create_future()

    def begins(self, error: Exception | None = None) -> None:
        """Called by the decoding thread: there are first tokens, or an error in their place; later calls do nothing."""
        begun = self._begun
        if begun is not None:
            begun.get_loop().call_soon_threadsafe(_settle, begun, error)

    async def begun(self) -> None:
        """Wait until a stream has its first tokens, so that a refusal is still an HTTP status.

        Raises:
            Exception: What the call raised in their place.
        """
        if self._begun is not None:
            await self._begun


def _settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


CURRENT: ContextVar[Request] = ContextVar("the request that is being answered")
"""The request of the running task; `Door` sets it."""
