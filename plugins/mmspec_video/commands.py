"""The video plugin's commands; registering them imports neither torch nor diffusers."""

from typing import TYPE_CHECKING, Any

import typer

from mmspec.bench.command import pipeline_command
from mmspec.cli.groups import group
from mmspec.serving.live.command import Port, serve_page
from mmspec_video.demo import demo_video

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage

WORLDS = ("four-courts", "four-courts-tokens")


def add(app: typer.Typer) -> None:
    summary = "Compare methods, interleaved, with plain decoding: how fast frames are made where all actions are known."
    bench = pipeline_command(_clips, "mmspec/four-courts-tokens", 4, None, summary)
    group(app, "bench", "Measure speed, and what it costs.").command("video")(bench)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("video")(demo_video)
    app.command("play")(play)


def _clips() -> Any:
    from mmspec_video.recorded import clips

    return clips()


def play(port: Port = 8010) -> None:
    """Walk through the shipped worlds in the browser, plainly and with frames that are made ahead, side by side."""
    serve_page(stage, port, "mmspec play")


def stage() -> "Stage":
    """The page, with both worlds; their models are loaded here, once for all pages."""
    from functools import partial
    from pathlib import Path

    from transformers.utils import logging

    from mmspec.serving.live.stage import Stage
    from mmspec_video.play.session import PlaySession, World

    logging.disable_progress_bar()
    worlds = {name: World.shipped(name) for name in WORLDS}
    return Stage("play", "Walk through a world", Path(__file__).parent / "play" / "page", partial(PlaySession, worlds))
