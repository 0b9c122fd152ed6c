"""`python -m tools.bench trained`: what trainings of drafters change."""

from pathlib import Path
from typing import Annotated

import typer
from transformers.utils import logging

from mmspec.cli.groups import resumable
from mmspec.cli.places import refuse_unwritable
from mmspec.registry.suggest import unknown
from mmspec.report import terminal
from mmspec.report.table import show_view
from tools.bench.trained.measure import TABLES, Lab
from tools.cards.trained import TrainedRow, load, view
from tools.report import lines


def trained(
    prose: Annotated[list[Path], typer.Option(help="Plain text beside the standard library.", exists=True)],
    table: Annotated[str, typer.Option(help="Tables, joined by commas.")] = ",".join(TABLES),
    json: Annotated[Path | None, typer.Option(help="Where to write the rows; those of other tables stay.")] = None,
    work: Annotated[Path, typer.Option(help="Folder of drafters and checkpoints.")] = Path("runs/trained"),
    pictures: Annotated[
        Path | None, typer.Option(help="Folder of pictures with captions, for the table of drafted sets.", exists=True)
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of every training.")] = 100,
) -> None:
    """Train drafters for the shipped text model, each with as many steps, and count with them; it resumes."""
    refuse_unwritable(json)
    names = table.split(",")
    for name in names:
        if name not in TABLES:
            raise ValueError(unknown("table", name, TABLES))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with resumable(work):
        for name in names:
            rows = list[TrainedRow]()
            for row in TABLES[name](Lab(prose, work, steps, typer.echo, pictures)):
                rows.append(row)
                if json is not None:
                    others = load(json) if json.is_file() else []
                    lines.save_lines(json, [*(other for other in others if other.table != name), *rows])
            show_view(view(name, rows), terminal.terminal())
