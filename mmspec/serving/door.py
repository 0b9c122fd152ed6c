"""The ASGI application around transformers': it bounds what is read of a request, and notices that a client leaves.

Starlette tells an answer that is no stream nothing about a client that has gone, so the work would go on for nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from mmspec.serving.errors import answer_to
from mmspec.serving.limits import Limits, TooLargeError
from mmspec.serving.request import CURRENT, Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Door:
    """Reads a request whole, within its limit, then lets the application answer it."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]], limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._body(dict(scope["headers"]), receive)
        except TooLargeError as error:
            await _send(error, send)
            return
        if body is None:
            return
        request, left = Request(), asyncio.Event()
        token = CURRENT.set(request)
        watching = asyncio.create_task(_watch(receive, request, left))
        try:
            await self._app(scope, _receive(body, left), send)
        finally:
            request.leave()  # whatever has ended the answer: nothing is decoded for it any more
            watching.cancel()
            CURRENT.reset(token)

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


def _receive(body: bytes, left: asyncio.Event) -> Receive:
    """What the application receives: the body, and then, when the client leaves, that it has."""
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if given:
            return given.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    return receive


async def _watch(receive: Receive, request: Request, left: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    request.leave()
    left.set()


async def _send(error: Exception, send: Send) -> None:
    status, text = answer_to(error)
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
