"""The image plugin's commands. Registering them imports nothing heavy."""

import typer

from mmspec.bench import one_shape_command
from mmspec.cli.groups import group
from mmspec_image.bench.command import bench_image, one_shape_image
from mmspec_image.demo import demo_image
from mmspec_image.generate import generate_image
from mmspec_image.train.command import train_image, train_image_head
from mmspec_image.view.command import view_image


def add(app: typer.Typer) -> None:
    """Add our commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("image")(generate_image)
    group(app, "bench", "Measure speed, and what it costs.").command("image")(bench_image)
    one_shape_command.add(app, "image", one_shape_image)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("image")(demo_image)
    group(app, "view", "Watch decoding in the browser.").command("image")(view_image)
    training = group(app, "train", "Train drafters, and the small models that mmspec ships.")
    training.command("image")(train_image)
    training.command("image-head")(train_image_head)
