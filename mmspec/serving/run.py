"""The server's process: a port that is free, and uvicorn on it."""

import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from transformers.utils import logging

from mmspec.registry.warn import warn
from mmspec.serving.limits import Limits

GRACE = 5  # seconds that running answers have when the server is told to stop


def listener(host: str, port: int) -> socket.socket:
    """A socket that holds the port; nobody is served before the server runs."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "is taken; --port 0 takes one that is free" if taken else f"cannot be had: {error.strerror or error}"
        raise ValueError(f"port {port} of {host} {why}") from error
    if not ipaddress.ip_address(str(address[0])).is_loopback:
        warn(f"{host} can be reached from other machines, and the server asks nobody for a password")
    return listening


def server(
    app: Any, listening: socket.socket, connections: int, ready: Callable[[str], None], **config: Any
) -> uvicorn.Server:
    """A server, over the socket of `listener`, that has not begun to serve; `ready` gets its address just before the
    first connection is taken, `uvicorn.Config` the further arguments.
    """
    settings = uvicorn.Config(app, log_level="warning", server_header=False, limit_concurrency=connections, **config)
    listening.listen(connections)  # from here on clients wait instead of being turned away
    host, port = listening.getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    return uvicorn.Server(settings)


def run(app: Any, listening: socket.socket, limits: Limits, ready: Callable[[str], None]) -> None:
    """Serve models until the process is told to stop; arguments as in `server`."""
    logging.get_logger("transformers.cli.serving").setLevel(logging.ERROR)  # it warns of every request
    at = server(app, listening, limits.connections, lambda url: ready(f"{url}v1"), timeout_graceful_shutdown=GRACE)
    at.run(sockets=[listening])
