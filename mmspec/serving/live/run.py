"""The process of a server of pages."""

import socket
from collections.abc import Callable, Sequence

import uvicorn

from mmspec.serving.live.app import application
from mmspec.serving.live.stage import Stage

LONGEST = 8192
"""Most bytes of a page's message."""
CONNECTIONS = 256


def run(stages: Sequence[Stage], listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until the process is told to stop.

    Args:
        stages: The stages.
        listening: What `mmspec.serving.run.listener` returned, on a loopback address.
        ready: Called with the server's address just before the first connection is taken.
    """
    server(stages, listening, ready).run(sockets=[listening])


def server(stages: Sequence[Stage], listening: socket.socket, ready: Callable[[str], None]) -> uvicorn.Server:
    """The server, which has not begun to serve; arguments as in `run`."""
    host, port = listening.getsockname()[:2]
    config = uvicorn.Config(
        application(stages, port),
        log_level="warning",
        server_header=False,
        lifespan="off",
        limit_concurrency=CONNECTIONS,
        ws_max_size=LONGEST,
        timeout_graceful_shutdown=2,
    )
    listening.listen(CONNECTIONS)
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    return uvicorn.Server(config)
