"""`mmspec demo image`: the shipped model draws the same captions plainly and speculatively, on one sheet."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import make_image_grid
from PIL.Image import Image, Resampling
from rich.console import Console
from rich.table import Table

from mmspec_image.pipeline import TextToImageOutput, TextToImagePipeline

MODEL = "mmspec/emoji"
CAPTIONS = ("red heart", "cat face", "red apple", "woman farmer", "flag japan", "smiling face with sunglasses")
WINDOW = 8
METHODS: dict[str, dict[str, Any]] = {"plain": {}, "gs-sjd": {"k": WINDOW}, "gsd": {"k": WINDOW}}
GUIDANCE, SEED, ZOOM = 3.0, 0, 2


@dataclass
class Row:
    """One method: what it drew, and how long each picture took."""

    outputs: list[TextToImageOutput]
    seconds: list[float]


def demo_image(out: Path) -> None:
    """Print passes and speed of each method, and write the sheet: a row of pictures a method."""
    console = Console()
    pipe = TextToImagePipeline.from_pretrained(MODEL)
    pipe.set_progress_bar_config(disable=True)
    rows = _race(pipe)
    console.rule(f"{MODEL}, guidance {GUIDANCE:g}, temperature 1, seed {SEED}")
    console.print(_table(rows))
    _write_sheet([image for row in rows.values() for output in row.outputs for image in output.images], out)
    console.print(f"{out}: from top to bottom {', '.join(rows)}; from left to right {', '.join(CAPTIONS)}")


def _race(pipe: TextToImagePipeline) -> dict[str, Row]:
    """Caption by caption, all methods in turns; the first caption is drawn once more, not counted, before all."""
    rows = {name: Row([], []) for name in METHODS}
    for turn, caption in enumerate((CAPTIONS[0], *CAPTIONS)):
        for name, options in METHODS.items():
            pipe.use(name, **options)
            began = time.perf_counter()
            output = pipe(caption, guidance_scale=GUIDANCE, seed=SEED)
            if turn:
                rows[name].outputs.append(output)
                rows[name].seconds.append(time.perf_counter() - began)
    return rows


def _table(rows: dict[str, Row]) -> Table:
    table = Table("method", "exactness", "passes", "seconds", "speed-up", "as plain", "altered")
    plain = rows["plain"]
    for name, row in rows.items():
        reports = [output.report for output in row.outputs]
        same = sum(torch.equal(a.codes, b.codes) for a, b in zip(row.outputs, plain.outputs, strict=True))
        altered = [report.bias.altered for report in reports if report.bias is not None]
        table.add_row(
            name,
            reports[0].exactness,
            f"{statistics.mean(report.rounds for report in reports):.0f}",
            f"{statistics.mean(row.seconds):.2f}",
            f"{sum(plain.seconds) / sum(row.seconds):.2f}",
            f"{same} of {len(row.outputs)} pictures",
            f"{statistics.mean(altered):.1f} of {plain.outputs[0].codes[0].numel()} codes" if altered else "",
        )
    return table


def _write_sheet(pictures: list[Image], out: Path) -> None:
    """One row of pictures a method, whole or not at all."""
    large = [picture.resize((picture.width * ZOOM, picture.height * ZOOM), Resampling.NEAREST) for picture in pictures]
    scratch = out.with_name(f".{out.stem}.part.png")
    make_image_grid(large, len(METHODS), len(CAPTIONS)).save(scratch)
    scratch.replace(out)
