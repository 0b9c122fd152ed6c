"""The continuous plugin's commands. Registering them imports nothing heavy."""

import typer

from mmspec.cli.groups import group
from mmspec_continuous.bench.command import bench_continuous, bench_denoising
from mmspec_continuous.demo import demo_continuous
from mmspec_continuous.generate import generate_continuous
from mmspec_continuous.train.command import train_continuous


def add(app: typer.Typer) -> None:
    """Add our commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("continuous")(generate_continuous)
    bench = group(app, "bench", "Measure speed, and what it costs.")
    bench.command("continuous")(bench_continuous)
    bench.command("denoising")(bench_denoising)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("continuous")(demo_continuous)
    trains = group(app, "train", "Train drafters, and the small models that mmspec ships.")
    trains.command("continuous")(train_continuous)
