"""The video plugin's commands; registering them imports neither torch nor diffusers."""

from typing import Any

import typer

from mmspec.bench.command import pipeline_command
from mmspec.cli.groups import group
from mmspec_video.demo import demo_video
from mmspec_video.play.command import play


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    summary = "Compare methods, interleaved, with plain decoding: how fast frames are made where all actions are known."
    bench = pipeline_command(_clips, "mmspec/four-courts-tokens", 4, None, summary)
    group(app, "bench", "Measure speed, and what it costs.").command("video")(bench)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("video")(demo_video)
    app.command("play")(play)


def _clips() -> Any:
    """What `mmspec bench video` measures."""
    from mmspec_video.bench import clips

    return clips()
