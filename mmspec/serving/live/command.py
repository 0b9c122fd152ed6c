"""The common part of commands that open pages: the port, what has to be installed, and the address to open."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.serving import refuse_missing

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage

NEEDED = ("starlette", "uvicorn", "websockets")
LOOPBACK = "127.0.0.1"
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")]


def serve_page(stage: "Callable[[], Stage]", port: int, command: str) -> None:
    """Serve a page, made after what is needed was checked, until the process is told to stop; messages name the
    command.
    """
    refuse_missing(command, NEEDED, "play")
    from mmspec.serving.live.app import server
    from mmspec.serving.run import listener

    listening = listener(LOOPBACK, port)
    page = stage()
    at = server([page], listening, lambda address: typer.echo(f"open {address}{page.name}/ (CTRL-C stops)"))
    at.run(sockets=[listening])
