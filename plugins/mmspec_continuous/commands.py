"""The continuous plugin's commands. Registering them imports nothing heavy."""

import typer

from mmspec.cli.groups import group
from mmspec_continuous.bench.command import bench_continuous
from mmspec_continuous.demo import demo_continuous
from mmspec_continuous.generate import generate_continuous


def add(app: typer.Typer) -> None:
    """Add our commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("continuous")(generate_continuous)
    group(app, "bench", "Measure speed, and what it costs.").command("continuous")(bench_continuous)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("continuous")(demo_continuous)
