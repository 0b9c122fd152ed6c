"""The server's process: a port that is free, and uvicorn on it."""

import errno
import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from mmspec.registry.warn import warn

LAST = 5  # seconds for connections to close when all answers have ended
IDLE = 65  # seconds until a connection without requests is closed: clients, of which many have 5, do so before


class Draining(uvicorn.Server):
    """uvicorn's server; at the first signal it turns new requests away and lets running ones end, for `grace` seconds.

    At the second one it stops as uvicorn does.
    """

    def __init__(self, config: uvicorn.Config, door: Any, grace: float) -> None:
        super().__init__(config)
        self._door, self._grace = door, grace
        self._until: float | None = None  # when the grace is over

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._until is not None:
            super().handle_exit(sig, frame)
        self._door.stopping, self._until = True, time.monotonic() + self._grace

    async def on_tick(self, counter: int) -> bool:
        """As in uvicorn, ten times a second."""
        if self._until is not None and (self._door.empty or time.monotonic() >= self._until):
            self._door.end()
            self.should_exit = True
        return await super().on_tick(counter)


def listener(host: str, port: int, open_to_all: bool = True) -> socket.socket:
    """A socket that holds the port; nobody is served before the server runs. `open_to_all`: it asks for no key."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "is taken; --port 0 takes one that is free" if taken else f"cannot be had: {error.strerror or error}"
        raise ValueError(f"port {port} of {host} {why}") from error
    if open_to_all and not ipaddress.ip_address(str(address[0])).is_loopback:
        warn(f"{host} can be reached from other machines, and the server asks nobody for a password")
    return listening


def server(
    app: Any,
    listening: socket.socket,
    connections: int,
    ready: Callable[[str], None],
    kind: Callable[[uvicorn.Config], uvicorn.Server] = uvicorn.Server,
    **config: Any,
) -> uvicorn.Server:
    """A server of a `kind`, over the socket of `listener`, that has not begun to serve; `ready` gets its address just
    before the first connection is taken, `uvicorn.Config` the further arguments.
    """
    settings = uvicorn.Config(app, log_level="warning", server_header=False, limit_concurrency=connections, **config)
    listening.listen(connections)  # from here on clients wait instead of being turned away
    host, port = listening.getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    return kind(settings)


def run(door: Any, listening: socket.socket, connections: int, grace: float, ready: Callable[[str], None]) -> None:
    """Serve models until the process is told to stop, and log a line a request on standard error; `door` is the
    application, `grace` as in `Draining`, the others as in `server`.
    """
    logging.getLogger("transformers.cli.serving").setLevel(logging.ERROR)  # it warns of every request
    log = logging.getLogger("mmspec.serving")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    log.propagate = False
    at = server(
        door,
        listening,
        connections,
        lambda url: ready(f"{url}v1"),
        kind=lambda config: Draining(config, door, grace),
        timeout_graceful_shutdown=LAST,
        timeout_keep_alive=IDLE,
    )
    at.run(sockets=[listening])
