"""What commands that benchmark share: files refused before anything runs, a bar, tables, the files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.places import refuse_unwritable

if TYPE_CHECKING:
    from mmspec.bench.plan import Plan
    from mmspec.report.result import Result

Progress = Callable[["Plan"], Callable[[], None]]
"""Given what is ahead, returns what is called after each call."""


Quick = Annotated[bool, typer.Option("--quick", help="All methods in about two minutes: less of all, speed alone.")]


def check_output_folders(json: Path | None, plot: Path | None) -> None:
    """Refuse what could only fail in the end.

    Args:
        json: Where the result is to be written, or None.
        plot: Where it is to be drawn, or None.

    Raises:
        ValueError: One cannot be written, or nothing here can draw a plot.
    """
    refuse_unwritable(json, plot)
    if plot is not None:
        from mmspec.report.plot import refuse

        refuse(plot)


def bench(name: str, run: Callable[[Progress], "Result"], json: Path | None, plot: Path | None) -> None:
    """Say how long it will take, run, show the tables, write the files.

    Args:
        name: On the bar.
        run: Makes the result.
        json: Where to write it, or None.
        plot: Where to draw it, or None.
    """
    from tqdm import tqdm
    from transformers.utils import logging

    from mmspec.report.table import show

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def progress(plan: "Plan") -> Callable[[], None]:
        typer.echo(f"bench {name}: {plan}", err=True)
        bar = tqdm(total=plan.calls, desc=f"bench {name}", unit="call", leave=False)
        return lambda: bar.update() and None

    result = run(progress)
    if json is not None:
        result.save(json)
    show(result)
    if plot is not None:
        from mmspec.report.plot import save

        save(result, plot)
