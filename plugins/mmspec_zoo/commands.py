"""The commands of the zoo. Registering them imports nothing heavy; running them does."""

import typer

from mmspec.cli.groups import group
from mmspec_zoo.infill.command import generate_infill, train_infill
from mmspec_zoo.relaxed.judge_command import train_judge


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    training = group(app, "train", "Train drafters for models of yours.")
    training.command("judge")(train_judge)
    training.command("infill")(train_infill)
    group(app, "generate", "Generate, speculatively.").command("infill")(generate_infill)
