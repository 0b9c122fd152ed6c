"""`python -m tools.bench table`: rows of a table of prompts of many lengths, by the rows of a pass.

All rows are made in turns of one process; every text is compared with that of its row alone.
"""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import mmspec
from mmspec.api.row_values import objects
from mmspec.bench.timing import describe
from mmspec.cli.places import refuse_unwritable
from mmspec.kits.text.bench.settings import held_out
from tools.report import lines

GIVEN, NEW = (20, 60, 150, 300), (8, 16, 32, 64)  # characters of prompts, and new tokens


@dataclass(frozen=True)
class Cell:
    """A number of rows."""

    model: str
    rows: int
    prompts: int
    same: int  # texts that are those of their rows alone
    tokens_per_second: float
    device: str = field(default_factory=lambda: describe("cpu"))


def table(
    model: Annotated[str, typer.Option(help="A language model.")] = "mmspec/text-14m",
    prompts: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    json_file: Annotated[Path | None, typer.Option("--json", help="A file that gets a line each.")] = None,
) -> None:
    """Tokens a second of plain decoding with 1, 2, 4 and 8 rows of a pass."""
    refuse_unwritable(json_file)
    draw, texts = random.Random(0), [*held_out()["code"], *held_out()["prose"]]
    given = [texts[number % len(texts)][: draw.choice(GIVEN)] for number in range(prompts)]
    new, ids = [draw.choice(NEW) for _ in given], [str(number) for number in range(prompts)]
    columns = {"id": objects(ids), "prompt": objects(given), "max_new_tokens": objects(new)}
    alone, cells = list[Any](), list[Cell]()
    for rows in (1, 2, 4, 8):
        computing = mmspec.Rows(model, method="plain", rows=rows)
        computing({name: values[:8] for name, values in columns.items()})
        began = time.perf_counter()
        made = list(computing(columns)["text"])
        seconds = time.perf_counter() - began
        alone = alone or made
        same = sum(mine == own for mine, own in zip(made, alone, strict=True))
        cells.append(Cell(model, rows, prompts, same, sum(new) / seconds))
        typer.echo(f"{rows} rows: {cells[-1].tokens_per_second:6.1f} tokens a second, {same} of {prompts} texts equal")
    if json_file is not None:
        lines.save_lines(json_file, cells)
