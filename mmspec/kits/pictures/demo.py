"""A demonstration: the same captions and seeds under several methods, as one sheet of pictures and a table.

    draw_demo(pipe, {"plain": {}, "gs-sjd": {"k": 16}}, ["princess skin 4", "boy"], 3.0, Path("demo-output/image.png"))

Captions are columns, methods rows. Pictures are drawn one at a time, method after method, so that all methods run under
the same load; each method's first call is not counted.
"""

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from mmspec.bench.race import Run, Track, relay
from mmspec.bench.rows import biases, seconds_and_speedup
from mmspec.cli import places
from mmspec.files import save_whole
from mmspec.kits.pictures.command import pipeline, refuse_format
from mmspec.report import terminal
from mmspec.report.views import HONEST, badge

CELL, GAP = 128, 8  # pixels of a picture on the sheet at least, and between pictures
LETTERS = 14  # height of the labels, in pixels
COLUMNS = ("method", "exactness", "passes", "acceptance length", "seconds a picture", "speed-up", "pictures")


@dataclass(frozen=True)
class Drawing:
    """A contestant: a pipeline with one method. The units of its runs are the pixels, `[height, width, 3]`."""

    pipe: Any
    how: Mapping[str, Any]  # arguments of `use`
    guidance: float

    def __call__(self, task: tuple[str, int]) -> Run:
        caption, seed = task
        self.pipe.use(**self.how)
        began = time.perf_counter()
        output = self.pipe(caption, guidance_scale=self.guidance, seed=seed)
        seconds = time.perf_counter() - began
        return Run(seconds, [torch.from_numpy(np.array(output.images[0].convert("RGB")))], output.report)


def make_room(out: Path) -> None:
    """Make the folder of a sheet before anything is loaded for it."""
    refuse_format(out)
    places.refuse_folders(out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    places.refuse_unwritable(out)


def demonstrate(
    model: str, rows: Mapping[str, Mapping[str, Any]], captions: Sequence[str], guidance: float, out: Path
) -> None:
    """Load a model of that name, and `draw_demo`."""
    make_room(out)
    draw_demo(pipeline(model, "cpu", method="plain"), rows, captions, guidance, out)


def draw_demo(
    pipe: Any, rows: Mapping[str, Mapping[str, Any]], captions: Sequence[str], guidance: float, out: Path
) -> dict[str, Track]:
    """Draw, write the sheet, print the table; returns the runs of every row, a repeat for each caption.

    The pipeline is left with the last row's method. `rows` are arguments of `pipe.use` by a name for the row; `method`
    is that name where it is left out. The first row is what the others are compared with: plain decoding. Captions are
    drawn with seeds 0, 1, …; `guidance` is the scale. `make_room` has checked `out`, the sheet's path.
    """
    pipe.set_progress_bar_config(disable=True)
    contestants = {name: Drawing(pipe, {"method": name, **how}, guidance) for name, how in rows.items()}
    tracks = relay(contestants, [[(caption, seed)] for seed, caption in enumerate(captions)], [(captions[0], 0)])
    pictures = [[Image.fromarray(run.units[0].numpy()) for run in track.every] for track in tracks.values()]
    save_whole(out, labelled(pictures, list(tracks), captions).save)
    console = terminal.terminal()
    terminal.table(console, COLUMNS, table_rows(tracks), whole=("method",), boxed=True)
    terminal.line(console, str(out))
    return tracks


def labelled(pictures: Sequence[Sequence[Image.Image]], names: Sequence[str], captions: Sequence[str]) -> Image.Image:
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
            sheet.paste(picture.resize((side, tall), Image.Resampling.NEAREST), (left + column * (side + GAP), y))
    return sheet


def table_rows(tracks: Mapping[str, Track]) -> Iterator[tuple[str, ...]]:
    """The cells of `COLUMNS`; the first track is plain decoding's."""
    plain = next(iter(tracks.values()))
    for name, track in tracks.items():
        reports = [run.report for run in track.every if run.report is not None]
        passes = sum(report.row_rounds for report in reports)
        length = sum(report.emitted - report.rows for report in reports) / max(passes, 1)
        numbers = (str(passes), f"{length:.2f}", *seconds_and_speedup(track, plain))
        yield name, badge(reports[0].exactness), *numbers, "" if track is plain else against(track, plain)


def against(track: Track, plain: Track) -> str:
    """A comparison of a row's pictures with plain decoding's, in words."""
    pairs = [(own.units[0], other.units[0]) for own, other in zip(track.every, plain.every, strict=True)]
    same, report = sum(torch.equal(own, other) for own, other in pairs), track.every[0].report
    assert report is not None
    if same == len(pairs):
        return "equal to plain's"
    if report.exactness in HONEST:
        return f"{same} of {len(pairs)} equal to plain's" if same else "others, of the same distribution"
    bias = biases([run.report for run in track.every])
    if not bias:
        return "others, of another distribution"
    return f"of another distribution: {bias['altered']:.1f} of {report.emitted} units expected to be altered"
