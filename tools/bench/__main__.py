"""`python -m tools.bench`: figures of the shipped models' cards that no user of mmspec needs."""

import sys
from collections.abc import Callable

import typer

from mmspec.cli.arguments import checked
from mmspec.cli.boundary import run
from tools.bench.continuous.command import bench_continuous
from tools.bench.core.command import bench_core
from tools.bench.denoising import denoising
from tools.bench.diversity.command import diversity
from tools.bench.image.command import bench_image
from tools.bench.loads import loads
from tools.bench.one_shape.command import COMMANDS
from tools.bench.papers import papers
from tools.bench.roofline import roofline
from tools.bench.served import served
from tools.bench.table import table
from tools.bench.text.command import bench_ssm, bench_text
from tools.bench.trained.command import trained
from tools.bench.video.command import bench_video


def build() -> typer.Typer:
    """The application with all benchmarks."""
    app = typer.Typer(help="Measure what cards show.", no_args_is_help=True, pretty_exceptions_enable=False)
    commands: dict[str, Callable[..., None]] = {
        "text": bench_text,
        "ssm": bench_ssm,
        "image": bench_image,
        "continuous": bench_continuous,
        "video": bench_video,
        "core": bench_core,
        "denoising": denoising,
        "diversity": diversity,
        "roofline": roofline,
        "trained": trained,
        "papers": papers,
        "served": served,
        "loads": loads,
        "table": table,
    }
    for name, command in commands.items():
        app.command(name)(checked(command))
    one_shape = typer.Typer(
        help="Count outputs that equal plain decoding to the bit, in half precision.", no_args_is_help=True
    )
    for name, compare in COMMANDS.items():
        one_shape.command(name)(checked(compare))
    app.add_typer(one_shape, name="one-shape")
    return app


if __name__ == "__main__":
    sys.exit(run(lambda: build()(standalone_mode=False)))
