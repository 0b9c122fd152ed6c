"""What the commands `mmspec bench one-shape …` share: where the result is kept, a bar, the table, the exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.groups import group
from mmspec.cli.places import refuse_unwritable
from mmspec.registry.suggest import unknown

if TYPE_CHECKING:
    from mmspec.bench.one_shape import Cell, Subject

Json = Annotated[
    Path | None,
    typer.Option(help="Where to keep the result, a line of JSON a cell; cells that are in it are not run again."),
]
Dtypes = Annotated[str, typer.Option(help="Dtypes of the weights, joined by commas.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
KNOWN = ("bfloat16", "float16", "float32")
HALVES = "bfloat16,float16"


def add(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Add a command to `mmspec bench one-shape`."""
    bench = group(app, "bench", "Measure speed, and what it costs: always against plain decoding.")
    group(bench, "one-shape", "Count outputs that equal plain decoding to the bit, in half precision.").command(name)(
        command
    )


def run(
    name: str, json: Path | None, dtypes: str, prepare: "Callable[[list[str]], tuple[Subject, list[Cell]]]"
) -> None:
    """Check the arguments, run all cells, show the table; exit code 1 if an output under one shape differs.

    Args:
        name: Name on the progress bar.
        json: Where the result is kept, or None.
        dtypes: Names of dtypes, joined by commas.
        prepare: Makes the subject and its cells for a list of dtypes; called after all checks.

    Raises:
        ValueError: A dtype is unknown, or the file cannot be written.
    """
    wanted = dtypes.split(",")
    for dtype in wanted:
        if dtype not in KNOWN:
            raise ValueError(unknown("dtype", dtype, KNOWN))
    refuse_unwritable(json)
    from tqdm import tqdm
    from transformers.utils import logging

    from mmspec.bench.one_shape import measure
    from mmspec.report import terminal
    from mmspec.report.equality import view
    from mmspec.report.table import show_view

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    subject, cells = prepare(wanted)
    with tqdm(total=len(cells), desc=f"bench one-shape {name}", unit="cell", leave=False) as bar:
        found = measure(subject, cells, json, lambda: bar.update() and None)
    show_view(view(found), terminal.terminal())
    if any(cell.apart for cell in found if cell.shape == "one"):
        raise typer.Exit(1)
