"""The image plugin's commands. Registering them imports nothing heavy."""

import typer

from mmspec.cli.groups import group
from mmspec_image.bench.command import bench_image
from mmspec_image.demo import demo_image
from mmspec_image.generate import generate_image
from mmspec_image.train.command import train_image_head
from mmspec_image.view.command import view_image


def add(app: typer.Typer) -> None:
    """Add our commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("image")(generate_image)
    group(app, "bench", "Measure speed, and what it costs.").command("image")(bench_image)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("image")(demo_image)
    group(app, "view", "Watch decoding in the browser.").command("image")(view_image)
    group(app, "train", "Train drafters for models of yours.").command("image-head")(train_image_head)
