"""`python -m tools.bench`: figures of the shipped models' cards that no user of mmspec needs."""

import sys

import typer

from mmspec.cli.arguments import checked
from mmspec.cli.boundary import run
from tools.bench.denoising import denoising
from tools.bench.diversity.command import diversity
from tools.bench.one_shape.command import COMMANDS


def build() -> typer.Typer:
    """The application with all benchmarks."""
    app = typer.Typer(help="Measure what cards show.", no_args_is_help=True, pretty_exceptions_enable=False)
    for command in (diversity, denoising):
        app.command()(checked(command))
    one_shape = typer.Typer(
        help="Count outputs that equal plain decoding to the bit, in half precision.", no_args_is_help=True
    )
    for name, command in COMMANDS.items():
        one_shape.command(name)(checked(command))
    app.add_typer(one_shape, name="one-shape")
    return app


if __name__ == "__main__":
    sys.exit(run(lambda: build()(standalone_mode=False)))
