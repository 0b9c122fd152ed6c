"""A server of pages in a thread, and the sockets of its pages."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from mmspec.serving.live.app import server
from mmspec.serving.live.stage import Stage
from mmspec.serving.run import listener

PATIENCE = 60.0
"""Seconds for a message: a busy machine is slow."""


@contextmanager
def served(stages: Sequence[Stage]) -> Iterator[str]:
    """The server's `host:port`, while the block runs."""
    listening = listener("127.0.0.1", 0)
    addresses: list[str] = []
    running = server(stages, listening, addresses.append)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield addresses[0].removeprefix("http://").rstrip("/")
    finally:
        running.should_exit = True
        thread.join(PATIENCE)


@contextmanager
def page(place: str, stage: str, origin: str | None = "its own") -> Iterator["Page"]:
    """An open page, as its script talks to the server."""
    origin = f"http://{place}" if origin == "its own" else origin
    # messages that nobody read keep the close from being heard: it is not waited for
    how: dict[str, Any] = {"open_timeout": PATIENCE, "close_timeout": 0.5, "max_size": None}
    with connect(f"ws://{place}/{stage}/live", origin=origin, **how) as socket:
        yield Page(socket)


class Page:
    """The page's side of a socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def tell(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of the kinds; any, if none is named."""
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            if not kinds or message["type"] in kinds:
                return message


def eventually(true: Any) -> bool:
    """True if something becomes true while one waits."""
    until = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(true())
