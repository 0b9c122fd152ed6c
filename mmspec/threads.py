"""Questions that are asked in a thread of their own, for which nobody has to wait."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Value = TypeVar("Value")


def asked(ask: Callable[[], Value], name: str) -> "Future[Value]":
    """The answer, asked for in a daemon thread: neither CTRL-C nor the interpreter's exit waits for it."""
    answer: Future[Value] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # whoever waits for the answer gets it
            answer.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return answer
