"""A demonstration: the same captions and seeds under several methods, as one sheet of pictures and a table.

    draw_demo(pipe, {"plain": {}, "gs-sjd": {"k": 16}}, ["princess skin 4", "boy"], 3.0, Path("demo-output/image.png"))

Captions are columns, methods rows. Pictures are drawn one at a time, method after method, so that all methods run under
the same load; each method's first call is not counted.
"""

import statistics
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmspec.cli import places
from mmspec.core.report import Report
from mmspec.files import save_whole
from mmspec.kits.pictures.command import pipeline, refuse_format
from mmspec.report import terminal
from mmspec.report.views import HONEST, badge

CELL, GAP = 128, 8
"""Pixels of a picture on the sheet at least, and between pictures."""
LETTERS = 14
"""Height of the labels, in pixels."""
COLUMNS = ("method", "exactness", "passes", "acceptance length", "seconds", "speed-up", "pictures")


@dataclass
class DemoRow:
    """What one method drew, in the order of the captions."""

    name: str  # the row's name
    pictures: list[Any] = field(default_factory=list)  # PIL pictures
    reports: list[Report] = field(default_factory=list)  # reports of the same calls
    seconds: list[float] = field(default_factory=list)  # seconds of the same calls, from caption to pixels

    @property
    def exactness(self) -> str:
        return self.reports[0].exactness


def make_room(out: Path) -> None:
    """Make the folder of a sheet before anything is loaded for it.

    Raises:
        ValueError: The name's ending is no format of pictures, or there is a folder of that name.
    """
    refuse_format(out)
    places.refuse_folders(out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    places.refuse_unwritable(out)


def demonstrate(
    model: str, rows: Mapping[str, Mapping[str, Any]], captions: Sequence[str], guidance: float, out: Path
) -> None:
    """Load a model of that name, and `draw_demo`.

    Raises:
        ValueError: The sheet cannot be written, or there is no such model.
    """
    make_room(out)
    draw_demo(pipeline(model, "cpu", method="plain"), rows, captions, guidance, out)


def draw_demo(
    pipe: Any, rows: Mapping[str, Mapping[str, Any]], captions: Sequence[str], guidance: float, out: Path
) -> list[DemoRow]:
    """Draw, write the sheet, print the table.

    Args:
        pipe: A pipeline of `mmspec.kits.pictures.pipeline`; it is left with the last row's method.
        rows: Arguments of `pipe.use` by a name for the row; `method` is that name where it is left out. The first is
            what the others are compared with: plain decoding.
        captions: One picture each, drawn with seeds 0, 1, ….
        guidance: Scale of guidance.
        out: Where the sheet is written; `make_room` has checked it.

    Returns:
        What was drawn, row by row.
    """
    pipe.set_progress_bar_config(disable=True)
    drawn = [DemoRow(name) for name in rows]
    for row in drawn:
        _draw(pipe, rows, DemoRow(row.name), captions[0], 0, guidance)
    for seed, caption in enumerate(captions):
        for row in drawn:
            _draw(pipe, rows, row, caption, seed, guidance)
    save_whole(out, labelled([row.pictures for row in drawn], [row.name for row in drawn], captions).save)
    console = terminal.terminal()
    terminal.table(console, COLUMNS, _table(drawn), whole=("method",), boxed=True)
    terminal.line(console, str(out))
    return drawn


def _draw(
    pipe: Any, rows: Mapping[str, Mapping[str, Any]], row: DemoRow, caption: str, seed: int, guidance: float
) -> None:
    pipe.use(**{"method": row.name, **rows[row.name]})
    began = time.perf_counter()
    output = pipe(caption, guidance_scale=guidance, seed=seed)
    row.seconds.append(time.perf_counter() - began)
    row.pictures.append(output.images[0])
    row.reports.append(output.report)


def labelled(pictures: Sequence[Sequence[Any]], names: Sequence[str], captions: Sequence[str]) -> Image.Image:
    """A sheet of pictures of one size: captions above their columns, names before their rows."""
    font = ImageFont.load_default(LETTERS)
    width, height = pictures[0][0].size
    side = max(CELL, width)
    tall = side * height // width
    lines = [textwrap.wrap(caption, max(1, side * 2 // LETTERS)) for caption in captions]
    left = GAP + max(int(font.getlength(name)) for name in names) + GAP
    top = GAP + max(map(len, lines)) * (LETTERS + 4) + GAP
    size = (left + len(captions) * (side + GAP), top + len(names) * (tall + GAP))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for column, text in enumerate(lines):
        middle = left + column * (side + GAP) + side // 2
        pen.multiline_text((middle, top - GAP), "\n".join(text), "black", font, anchor="md", align="center")
    for line, (name, drawn) in enumerate(zip(names, pictures, strict=True)):
        y = top + line * (tall + GAP)
        pen.text((GAP, y + tall // 2), name, "black", font, anchor="lm")
        for column, picture in enumerate(drawn):
            large = picture.convert("RGB").resize((side, tall), Image.Resampling.NEAREST)
            sheet.paste(large, (left + column * (side + GAP), y))
    return sheet


def _table(drawn: Sequence[DemoRow]) -> Iterator[tuple[str, ...]]:
    plain = drawn[0]
    for row in drawn:
        emitted = sum(report.emitted - report.rows for report in row.reports)
        passes = sum(report.row_rounds for report in row.reports)
        seconds = sum(row.seconds)  # the speed-up is of the same seconds, so that the columns agree
        speedup = sum(plain.seconds) / seconds
        numbers = (str(passes), f"{emitted / max(passes, 1):.2f}", f"{seconds:.2f}", f"{speedup:.2f}")
        yield row.name, badge(row.exactness), *numbers, "" if row is plain else against(row, plain)


def against(row: DemoRow, plain: DemoRow) -> str:
    """How a row's pictures compare with plain decoding's, in words."""
    same = sum(np.array_equal(a, b) for a, b in zip(row.pictures, plain.pictures, strict=True))
    if same == len(plain.pictures):
        return f"those of {plain.name}"
    if row.exactness in HONEST:
        return f"{same} of {len(plain.pictures)} those of {plain.name}" if same else "others, of the same distribution"
    biases = [report.bias for report in row.reports if report.bias is not None]
    if not biases:
        return "others, of another distribution"
    altered = statistics.mean(bias.altered for bias in biases)
    return f"of another distribution: {altered:.1f} of {row.reports[0].emitted} units expected to be altered"
