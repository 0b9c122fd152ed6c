"""`mmspec play`: a page on this machine where the arrow keys walk through the shipped worlds."""

from typing import TYPE_CHECKING

from mmspec.serving.live.command import Port, serve_page

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage

WORLDS = ("four-courts", "four-courts-tokens")


def play(port: Port = 8010) -> None:
    """Walk through the shipped worlds in the browser, plainly and with frames that are made ahead, side by side."""
    serve_page(stage, port, "mmspec play")


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
    return Stage("play", "Walk through a world", Path(__file__).parent / "page", partial(PlaySession, worlds))
