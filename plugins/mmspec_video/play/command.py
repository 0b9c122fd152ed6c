"""`mmspec play`: a page on this machine where the arrow keys walk through the shipped worlds."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage

WORLDS = ("my-way-home", "my-way-home-tokens")
NEEDED = ("starlette", "uvicorn", "websockets")
LOOPBACK = "127.0.0.1"


def play(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8010,
) -> None:
    """Walk through the shipped worlds in the browser, plainly and with frames that are made ahead, side by side."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(f"mmspec play needs {', '.join(missing)}: pip install 'mmspec[play]'")
    from mmspec.serving.live.run import run
    from mmspec.serving.run import listener

    listening = listener(LOOPBACK, port)
    run([stage()], listening, lambda address: typer.echo(f"open {address}play/ (CTRL-C stops)"))


def stage() -> "Stage":
    """The page, with both worlds; their models are loaded here, once for all pages."""
    from functools import partial
    from pathlib import Path

    from transformers.utils import logging

    from mmspec.serving.live.stage import Stage
    from mmspec_video.play.session import PlaySession
    from mmspec_video.play.world import World

    logging.disable_progress_bar()
    worlds = {name: World.shipped(name) for name in WORLDS}
    page = Path(__file__).parent / "page"
    return Stage("play", "Walk through a world", page, partial(PlaySession, worlds))
