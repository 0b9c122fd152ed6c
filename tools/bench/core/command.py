"""`python -m tools.bench core`: the speed of the loop on models of published sizes, against the machine's limits."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.places import refuse_unwritable

DEADLINE = 540.0


def bench_core(
    shapes: Annotated[str | None, typer.Option(help="Shapes, joined by commas; default: all.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where to write the figures, one line of JSON each.")
    ] = None,
    deadline: Annotated[float, typer.Option(min=1, max=86400, help="Seconds for everything.")] = DEADLINE,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; default: cuda where there is one.")] = None,
) -> None:
    """Measure passes, rounds and calls on models of published sizes with random weights; on a CPU, on stand-ins."""
    refuse_unwritable(out)
    import torch
    from transformers.utils import logging

    from tools.bench.core.run import run
    from tools.bench.core.sections import Lines
    from tools.bench.core.shapes import chosen_shapes

    chosen = chosen_shapes(shapes)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    logging.set_verbosity_error()
    with nullcontext() if out is None else out.open("w", encoding="utf-8") as file:
        lines = Lines(file, lambda line: typer.echo(json.dumps(line, allow_nan=False)))
        run(chosen, torch.device(device), deadline, lines)
