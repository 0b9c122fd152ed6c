"""The door of the server: every request comes in here, is refused or answered in time, and is counted.

Starlette tells an answer that is no stream nothing about a client that has gone, so the work would go on for nobody:
the door notices. It also reads bodies within a limit, asks for a key, ends what takes too long (a client that has
stopped reading included), and turns requests away while the server stops.
"""

import asyncio
import hmac
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mmspec.registry.printable import shown
from mmspec.serving.limits import Limits, Refused
from mmspec.serving.meters import Meters
from mmspec.serving.request import CURRENT, FAULT, GONE, LATE, Message, Receive, Request, Send, answer_to, body_of

GUARDED = "/v1/"
"""Paths that begin with this ask for a key, and are logged; others are for whoever looks after the server."""
ID = b"x-request-id"
FAREWELL = 1.0  # seconds in which a client has to take the news that its time is over


class WrongKeyError(Refused):
    """A request comes with no key, or with one that is not the server's."""

    status, headers = 401, ((b"www-authenticate", b"Bearer"),)


class StoppingError(Refused):
    """The server takes no new requests, because it is about to stop."""

    status, headers = 503, ((b"retry-after", b"5"),)


class Door:
    """An application behind its door; any of the `keys` opens it, and without keys everybody may come in."""

    def __init__(
        self, app: Callable[[Any, Receive, Send], Awaitable[None]], limits: Limits, keys: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._limits = limits
        self._keys = [f"Bearer {key}".encode() for key in keys]
        self._open: dict[Request, asyncio.Timeout] = {}  # requests that are being answered
        self.stopping = False  # whether new requests are turned away
        self.meters = Meters(self._open.keys())

    @property
    def empty(self) -> bool:
        """True if no request is being answered."""
        return not self._open

    def end(self) -> None:
        """Let no answer take longer than it has."""
        for clock in self._open.values():
            if not clock.expired():
                clock.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(GUARDED):
            await self._app(scope, receive, send)
            return
        headers, began = dict(scope["headers"]), time.perf_counter()
        request, answer = Request(_id_of(headers)), Answer(send)
        scope = {**scope, "headers": [*scope["headers"], (ID, request.id.encode())]}
        token = CURRENT.set(request)
        try:
            await self._answered(request, answer, (scope, headers, receive))
        finally:
            CURRENT.reset(token)
            status = answer.status if answer.complete and answer.status else GONE if request.gone else FAULT
            request.leave()  # whatever has ended the answer: nothing is decoded for it any more
            self.meters.count(request, scope["path"], status, time.perf_counter() - began)
            request.shares.clear()  # they know the request, too

    async def _answered(
        self, request: Request, answer: "Answer", asked: tuple[Any, dict[bytes, bytes], Receive]
    ) -> None:
        """Answer a request in time."""
        scope, headers, receive = asked
        try:
            async with asyncio.timeout(self._limits.seconds) as clock:
                self._open[request] = clock
                try:
                    self._admit(headers)
                    if (body := await self._body(headers, receive)) is None:
                        request.leave()
                        return
                    async with _watched(receive, request, body) as watched:
                        await self._app(scope, watched, answer)
                finally:
                    del self._open[request]
        except Refused as error:
            request.fail(shown(error))
            await answer.refuse(*answer_to(error), error.headers)
        except TimeoutError:
            if not clock.expired():
                raise
            request.leave()
            late = f"the request took longer than {self._limits.seconds} s, and was ended"
            why = "the server stops: the request was ended" if self.stopping else late
            request.fail(why)
            await answer.give_up(body_of(LATE, why))

    def _admit(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a request without a key, and any while the server stops."""
        given = headers.get(b"authorization", b"")
        fits = [hmac.compare_digest(given, key) for key in self._keys]  # all of them: the time says nothing
        if self._keys and not any(fits):
            raise WrongKeyError(
                "the key is missing or wrong; send it as 'Authorization: Bearer …' (api_key= of clients)"
            )
        if self.stopping:
            raise StoppingError("the server is about to stop and takes no new requests; send it again")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The request's body; None if the client has left before its end."""
        said = headers.get(b"content-length", b"0")
        self._limits.refuse_body(int(said) if said.isdigit() else 0)
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts += message.get("body", b"")
            self._limits.refuse_body(len(parts))
            if not message.get("more_body"):
                return bytes(parts)


class Answer:
    """An answer on its way, and what has become of it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None  # None: it has not begun
        self.complete = False

    async def __call__(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        await self._send(message)
        self.complete |= message["type"] == "http.response.body" and not message.get("more_body")

    async def refuse(self, status: int, text: str, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Answer with an error, and close the connection: the body may not have been read."""
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *more]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": text.encode()})

    async def give_up(self, text: str) -> None:
        """Answer with an error; a stream that has begun ends with it, if its client still reads."""
        if self.status is None:
            await self.refuse(LATE, text)
            return
        try:
            async with asyncio.timeout(FAREWELL):
                await self({"type": "http.response.body", "body": f"data: {text}\n\n".encode()})
        except TimeoutError:
            pass  # the connection is closed without an end


def _id_of(headers: dict[bytes, bytes]) -> str:
    """The request's name: the client's, where it gives a short one."""
    given = headers.get(ID, b"").decode("latin-1")
    return given if given.isprintable() and 0 < len(given) <= 100 else uuid.uuid4().hex


@asynccontextmanager
async def _watched(receive: Receive, request: Request, body: bytes) -> AsyncIterator[Receive]:
    """Gives what the application receives: the body, and then, when the client leaves, that it has; then the request
    is left, too.
    """
    given, left = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        request.leave()
        left.set()

    async def next_message() -> Message:
        if given:
            return given.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    watching = asyncio.create_task(watch())
    try:
        yield next_message
    finally:
        watching.cancel()
