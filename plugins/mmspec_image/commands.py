"""The image plugin's commands. Registering them imports nothing heavy."""

from typing import Any

import typer

from mmspec.bench.command import pipeline_command
from mmspec.cli.groups import group
from mmspec_image.demo import demo_image
from mmspec_image.generate import generate_image
from mmspec_image.train.command import train_image_head
from mmspec_image.view.command import view_image


def add(app: typer.Typer) -> None:
    """Add our commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("image")(generate_image)
    summary = "Compare methods, interleaved, with plain decoding: how fast pictures of codes are drawn."
    bench = pipeline_command(_pictures, "mmspec/emoji", 32, 12, summary)
    group(app, "bench", "Measure speed, and what it costs.").command("image")(bench)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("image")(demo_image)
    group(app, "view", "Watch decoding in the browser.").command("image")(view_image)
    group(app, "train", "Train drafters for models of yours.").command("image-head")(train_image_head)


def _pictures() -> Any:
    """What `mmspec bench image` measures."""
    from mmspec.kits.pictures.bench import pictures

    return pictures("image", "code")
