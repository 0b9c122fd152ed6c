"""What commands that open pages share: the port, what has to be installed, and the address to open."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage

NEEDED = ("starlette", "uvicorn", "websockets")
LOOPBACK = "127.0.0.1"
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")]


def serve_page(stage: "Callable[[], Stage]", port: int, command: str) -> None:
    """Serve a page on this machine, until the process is told to stop.

    The page is made after what is needed was checked. Messages name the command.

    Raises:
        ValueError: A package is missing, or the port is taken.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(f"{command} needs {', '.join(missing)}: pip install 'mmspec[play]'")
    from mmspec.serving.live.app import run
    from mmspec.serving.run import listener

    listening = listener(LOOPBACK, port)
    page = stage()
    run([page], listening, lambda address: typer.echo(f"open {address}{page.name}/ (CTRL-C stops)"))
