"""What the commands that benchmark pictures share: options, early refusals, pipelines that load without bars."""

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.bench import command
from mmspec.bench.command import Progress
from mmspec.bench.methods import chosen_methods
from tools.bench.pictures.options import BenchOptions

if TYPE_CHECKING:
    from mmspec.report.result import Result

Json = Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")]
Plot = Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Repeats = Annotated[int, typer.Option(min=1, max=1000, help="Counted repeats, each of captions of its own.")]
Prompts = Annotated[int, typer.Option(min=1, max=32, help="Captions of a repeat; one picture each.")]
Batch = Annotated[int, typer.Option(min=0, max=32, help="Rows of the batch; 0 leaves batches out.")]
Seed = Annotated[int, typer.Option(help="Of the first picture; the others count up.")]
Model = Annotated[str, typer.Option(help="A shipped name, or the folder of a pipeline for captions.")]


def refuse(pictures: int, json: Path | None, plot: Path | None) -> None:
    """Refuse what could only fail in the end.

    Args:
        pictures: Pictures that every method draws.
        json: Where the result is to be written, or None.
        plot: Where it is to be drawn, or None.

    Raises:
        ValueError: A file cannot be written, or one picture has no distance to others.
    """
    command.check_output_folders(json, plot)
    if pictures < 2:
        raise ValueError("one picture has no distance to others; ask for two repeats or two prompts at least")


def bench(name: str, run: Callable[[Progress], "Result"], json: Path | None, plot: Path | None) -> None:
    """As `mmspec.bench.command.bench`; pipelines load without bars of their own."""
    from diffusers.utils import logging

    logging.disable_progress_bar()
    command.bench(name, run, json, plot)


def bench_model(
    name: str,
    subject: str,
    method: str | None,
    options: BenchOptions,
    quick: bool,
    device: str,
    model: str,
    json: Path | None,
    plot: Path | None,
) -> None:
    """Benchmark a model of pictures.

    `subject` is `module:Class` of `tools.bench.pictures.subject.Subject`, imported after all checks; `name` is
    shown on the bar; the others are options of the command.

    Raises:
        ValueError: An argument is wrong.
    """
    refuse(options.drawn, json, plot)
    methods = chosen_methods(method)
    from tools.bench.pictures.run import bench_pictures

    subject_of, options = resolve_name(subject), options.quick if quick else options
    bench(name, lambda progress: bench_pictures(subject_of, methods, options, device, progress, model), json, plot)
