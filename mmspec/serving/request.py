"""One request: its seed; whether its client is still there; its figures; its errors.

transformers' handlers hand on a body and nothing else; a context variable carries the rest to the thread that decodes.
Errors are as OpenAI's clients read them: a status, and `{"error": {"message", "type", "code"}}`.
"""

import asyncio
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError
from transformers.cli.serving.utils import _GenerationCancelled

from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.report import Report
from mmspec.registry.numbers import whole
from mmspec.registry.printable import one_line
from mmspec.serving.limits import Refused

MOST = 2**63  # seeds are smaller than this
MISTAKE, UNKNOWN, GONE, FAULT, FULL, LATE = 400, 404, 499, 500, 503, 504
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGone(_GenerationCancelled):
    """The client has closed its connection: nobody waits for the rest. transformers' streams end quietly on it."""


class Request:
    """One request; of one that asks for several texts, each text's share is one, too (`share`)."""

    def __init__(self, id: str = "", whole: "Request | None" = None) -> None:
        self.id = id
        self._parent = whole  # the request whose share this is; not itself: a cycle would keep its tensors for long
        self.began = time.perf_counter()
        self.first: float | None = None  # when its first token came
        self.model: str | None = None  # the name of the model that answers
        self.error: str | None = None  # why it was not answered
        self.seed = secrets.randbits(62)  # of the request's own noise, unless the client names one
        self.prompt: list[int] | None = None  # the prompt's tokens, where the client gives no text
        self.processors: list[Any] = []  # logits processors of the call
        self.top: int | None = None  # most probable tokens that each token comes with; None: without log-probabilities
        self.scores: deque[Any] = deque()  # `TokenScore`s that are not sent yet
        self.prompt_tokens = self.tokens = 0  # of the prompt, and new ones by now
        self.report: Report | None = None  # of the call, once it has ended
        self.shares: list[Request] = []
        self._gone = threading.Event()
        self._begun: asyncio.Future[None] | None = None

    def share(self, seed: int | None) -> "Request":
        """A text that the request asks for: with a seed of its own, and the same client."""
        share = Request(self.id, self)
        share.seeded(seed)
        self.shares.append(share)
        return share

    def seeded(self, seed: Any) -> None:
        """Take the client's seed; None leaves the one that was drawn."""
        if seed is not None:
            if whole("seed", seed) >= MOST:
                raise ValueError(f"seed is smaller than 2^63, and {seed} is not")
            self.seed = int(seed)

    @property
    def _whole(self) -> "Request":
        return self if self._parent is None else self._parent

    @property
    def gone(self) -> bool:
        """True if nobody waits for the answer any more."""
        return self._whole._gone.is_set()

    def leave(self) -> None:
        """The client has gone; what is decoded for it stops after its round."""
        self._whole._gone.set()

    def go_on(self) -> None:
        """Asked before decoding begins, and after every round of it; raises `ClientGone` where there is nobody to go on
        for.
        """
        if self.gone:
            raise ClientGone("the client has closed the connection")

    def fail(self, why: str) -> None:
        """Note why the answer is an error; the log says it."""
        self._whole.error = why

    def stream(self) -> None:
        """The answer will be a stream: `begun` has to wait until it is clear that the call is not refused."""
        if self._whole._begun is None:
            self._whole._begun = asyncio.get_running_loop().create_future()

    def begins(self, error: Exception | None = None) -> None:
        """Called by the decoding thread: there are first tokens, or an error in their place; later calls do nothing."""
        if self._whole.first is None and error is None:
            self._whole.first = time.perf_counter()
        begun = self._whole._begun
        if begun is not None:
            begun.get_loop().call_soon_threadsafe(_settle, begun, error)

    async def begun(self) -> None:
        """Wait until a stream has its first tokens, or raise what the call raised: it is still an HTTP status then."""
        if self._whole._begun is not None:
            await self._whole._begun


def _settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # where nobody waits any more, asyncio would complain that nobody has read it


CURRENT: ContextVar[Request] = ContextVar("the request that is being answered")
"""The request of the running task; the door sets it."""


class UnknownModelError(Refused):
    """No model of that name is served here."""

    status = UNKNOWN


def status_of(error: BaseException) -> int:
    """The HTTP status of an error: what the client can mend is 400 to 499; whatever else is ours.

    `ValueError` and `TypeError` are what mmspec and transformers raise about arguments, `TemplateError` what a chat
    template says of messages that do not suit it.
    """
    if isinstance(error, ClientGone):
        return GONE
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, ValueError | TypeError | TemplateError):
        return MISTAKE
    return FULL if out_of_memory(error) else FAULT


def message_of(error: BaseException, status: int) -> str:
    """The words of an error, in one printable line."""
    if out_of_memory(error):
        return "there is not enough memory for this request; ask for less"
    return one_line(error) if status < FAULT else f"{type(error).__name__}: {one_line(error)}"


def answer_to(error: BaseException) -> tuple[int, str]:
    status = status_of(error)
    return status, body_of(status, message_of(error, status))


def body_of(status: int, message: str) -> str:
    kind = "invalid_request_error" if status < FAULT else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})
