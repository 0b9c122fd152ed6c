"""The state-space plugin's commands. Registering them imports nothing heavy; running them does."""

import typer

from mmspec.cli.groups import group
from mmspec_ssm.bench.command import bench_ssm
from mmspec_ssm.train.command import train_ssm


def add(app: typer.Typer) -> None:
    """Add our commands to the groups that plugins share."""
    group(app, "bench", "Measure speed, and what it costs: always against plain decoding.").command("ssm")(bench_ssm)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("ssm")(demo)
    group(app, "train", "Train the small models that mmspec ships.").command("ssm")(train_ssm)


def demo() -> None:
    """The shipped hybrid writes Python and Shakespeare, plainly and speculatively, over trees, too."""
    from mmspec_ssm.demo import demo_ssm

    demo_ssm()
