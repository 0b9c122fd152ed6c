"""What all benchmark commands share: output folders are checked first; then a progress bar, tables, and the files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.places import refuse_unwritable

if TYPE_CHECKING:
    from mmspec.bench.plan import Plan
    from mmspec.report.result import Result

Progress = Callable[["Plan"], Callable[[], None]]
"""Takes the plan of a benchmark, shows it, and returns a function to be called after each measured call."""
Quick = Annotated[bool, typer.Option("--quick", help="All methods in about two minutes: less of all, speed alone.")]


def check_output_folders(json: Path | None, plot: Path | None) -> None:
    """Refuse output files that could only fail after the measurement.

    Args:
        json: File for the result, or None.
        plot: File for the plot, or None.

    Raises:
        ValueError: A file cannot be written, or matplotlib is not installed.
    """
    refuse_unwritable(json, plot)
    if plot is not None:
        from mmspec.report.plot import refuse

        refuse(plot)


def bench(name: str, run: Callable[[Progress], "Result"], json: Path | None, plot: Path | None) -> None:
    """Say how long the benchmark will take, run it, show its tables and write its files.

    Args:
        name: Name on the progress bar.
        run: The benchmark; it is given the progress bar and returns the result.
        json: File for the result, or None.
        plot: File for the plot, or None.
    """
    from tqdm import tqdm
    from transformers.utils import logging

    from mmspec.report.table import show
    from mmspec.report.views import vs_best

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def progress(plan: "Plan") -> Callable[[], None]:
        typer.echo(f"bench {name}: {plan}", err=True)
        bar = tqdm(total=plan.calls, desc=f"bench {name}", unit="call", leave=False)
        return lambda: bar.update() and None

    result = run(progress)
    if json is not None:
        replace(result, vs_best=vs_best(result)).save(json)
    show(result)
    if plot is not None:
        from mmspec.report.plot import save

        save(result, plot)
