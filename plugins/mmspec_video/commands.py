"""The video plugin's commands; registering them imports neither torch nor diffusers."""

import typer

from mmspec.cli.groups import group
from mmspec_video.bench.command import bench_video
from mmspec_video.demo import demo_video
from mmspec_video.play.command import play


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    group(app, "bench", "Measure speed, and what it costs.").command("video")(bench_video)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("video")(demo_video)
    app.command("play")(play)
