"""One request: its bytes, read within a limit; its seed; whether its client is still there; its errors.

transformers' handlers hand on a body and nothing else; a context variable carries the rest to the thread that decodes.
Starlette tells an answer that is no stream nothing about a client that has gone, so the work would go on for nobody:
`Door` stands around the application and notices. Errors are as OpenAI's clients read them: a status, and
`{"error": {"message", "type", "code"}}`.
"""

import asyncio
import json
import secrets
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError
from transformers.cli.serving.utils import _GenerationCancelled

from mmspec.core.out_of_memory import out_of_memory
from mmspec.registry.numbers import whole
from mmspec.registry.printable import one_line
from mmspec.serving.limits import Limits, TooLargeError

MOST = 2**63  # seeds are smaller than this
MISTAKE, UNKNOWN, TOO_LARGE, GONE, FAULT, FULL = 400, 404, 413, 499, 500, 503
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGone(_GenerationCancelled):
    """The client has closed its connection: nobody waits for the rest. transformers' streams end quietly on it."""


class Request:
    """One request."""

    def __init__(self) -> None:
        self.seed = secrets.randbits(62)  # of the request's own noise, unless the client names one
        self._gone = threading.Event()
        self._begun: asyncio.Future[None] | None = None

    def seeded(self, seed: Any) -> None:
        """Take the client's seed; None leaves the one that was drawn."""
        if seed is not None:
            if whole("seed", seed) >= MOST:
                raise ValueError(f"seed is smaller than 2^63, and {seed} is not")
            self.seed = int(seed)

    def leave(self) -> None:
        """The client has gone; what is decoded for it stops after its round."""
        self._gone.set()

    def go_on(self) -> None:
        """Asked before decoding begins, and after every round of it; raises `ClientGone` where there is nobody to go on
        for.
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
        """Wait until a stream has its first tokens, or raise what the call raised: it is still an HTTP status then."""
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


class UnknownModelError(ValueError):
    """No model of that name is served here."""


def status_of(error: BaseException) -> int:
    """The HTTP status of an error: what the client can mend is 400 to 499; whatever else is ours.

    `ValueError` and `TypeError` are what mmspec and transformers raise about arguments, `TemplateError` what a chat
    template says of messages that do not suit it.
    """
    if isinstance(error, ClientGone):
        return GONE
    if isinstance(error, TooLargeError):
        return TOO_LARGE
    if isinstance(error, UnknownModelError):
        return UNKNOWN
    if isinstance(error, ValueError | TypeError | TemplateError):
        return MISTAKE
    return FULL if out_of_memory(error) else FAULT


def message_of(error: BaseException, status: int) -> str:
    """The words of an error, in one printable line."""
    if status == FULL:
        return "there is not enough memory for this request; ask for less"
    return one_line(error) if status < FAULT else f"{type(error).__name__}: {one_line(error)}"


def answer_to(error: BaseException) -> tuple[int, str]:
    status = status_of(error)
    return status, body_of(status, message_of(error, status))


def body_of(status: int, message: str) -> str:
    kind = "invalid_request_error" if status < FAULT else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


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
    """The messages that the application receives: the body, and then, when the client leaves, that it has."""
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
