"""The video plugin's commands; registering them imports neither torch nor diffusers."""

import typer

from mmspec.bench import one_shape_command
from mmspec.cli.groups import group
from mmspec_video.bench.command import bench_video, one_shape_video
from mmspec_video.demo import demo_video
from mmspec_video.play.command import play
from mmspec_video.train.command import train_video


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    group(app, "bench", "Measure speed, and what it costs.").command("video")(bench_video)
    one_shape_command.add(app, "video", one_shape_video)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("video")(demo_video)
    app.command("play")(play)
    group(app, "train", "Train drafters, and the small models that mmspec ships.").command("video")(train_video)
