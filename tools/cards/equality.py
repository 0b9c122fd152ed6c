"""Measured equality: of how many outputs a method's is plain decoding's, to the bit, in half precision.

A document has a line of JSON for every cell: a method in a dtype, a setting and a batch. It is validated before
anything of it is shown, as the result of a benchmark is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from mmspec.report.result import Amount, Count
from mmspec.report.views import View
from tools.report.lines import load_lines

SUFFIX = ".one-shape.jsonl"
"""How the name of such a document beside a card ends."""
ANY = " Shape any: plain decoding has one node a pass, and the method as many as it drafts."
Rows = Annotated[int, Field(ge=1, le=2**31)]


@dataclass(frozen=True)
class Equality:
    model: str  # name of the target
    method: str
    dtype: str  # of the weights
    # `one` (all passes have `width` nodes, in plain decoding too), or `any` (plain passes have one node)
    shape: Literal["one", "any"]
    width: Rows | None  # nodes of every pass; None under `any`
    setting: str  # how units are drawn: `"T = 0.8"`.
    batch: Rows  # rows decoded together
    outputs: Rows  # outputs that were compared
    equal: Count  # those that are plain decoding's, unit by unit
    units: Count  # units of all outputs
    acceptance_length: Amount  # emitted units per row and pass after prefill
    # Of outputs that differ: the number of the output, and the first unit that is another one
    apart: list[tuple[Count, Count]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)  # options of the method
    piece: str = "text"  # word for one output
    device: str = ""  # the processor and its threads, or the GPU, in words
    versions: dict[str, str] = field(default_factory=dict)  # versions of mmspec, torch, transformers and Python


def load(path: Path) -> list[Equality]:
    """Read and validate a document that `mmspec.report.lines.save_lines` wrote.

    Raises:
        ValueError: The file is not such a document; names the line.
    """
    return load_lines(path, Equality, "python -m tools.bench one-shape", _refuse)


def _refuse(cell: Equality) -> None:
    if cell.equal + len(cell.apart) != cell.outputs:
        raise ValueError(f"{cell.equal} outputs equal and {len(cell.apart)} apart are not {cell.outputs}")
    if (cell.width is None) != (cell.shape == "any"):
        raise ValueError("one shape has a width, and any shape has none")


def view(cells: Sequence[Equality]) -> View:
    """A table: methods by batch and setting, equal outputs of all outputs by dtype and shape."""
    columns = list(dict.fromkeys((cell.dtype, cell.shape) for cell in cells))
    names = list(dict.fromkeys((cell.method, cell.batch, cell.setting) for cell in cells))
    rows = []
    for method, batch, setting in names:
        group = [cell for cell in cells if (cell.method, cell.batch, cell.setting) == (method, batch, setting)]
        widths = ", ".join(dict.fromkeys(str(cell.width) for cell in group if cell.width))
        rows.append((method, str(batch), setting, widths, *(_share(group, *column) for column in columns)))
    total = ("all", "", "", "", *(_share(cells, *column) for column in columns))
    header = ("method", "batch", "setting", "width", *(f"{dtype}, shape {shape}" for dtype, shape in columns))
    return View(
        f"{cells[0].piece.capitalize()}s equal to plain decoding, to the bit", header, [*rows, total], note(cells)
    )


def note(cells: Sequence[Equality]) -> str:
    """What was compared with what, and where."""
    first = cells[0]
    each = sorted({round(cell.units / cell.outputs) for cell in cells})
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    return (
        f"{first.model} on {first.device}; {versions}; {' or '.join(map(str, each))} units a {first.piece}. Equal: "
        "every unit, with the same seed and rows, is that of plain decoding. Shape one: all passes have the method's "
        "width, those of plain decoding too." + (ANY if "any" in {cell.shape for cell in cells} else "")
    )


def _share(cells: Sequence[Equality], dtype: str, shape: str) -> str:
    counted = [cell for cell in cells if (cell.dtype, cell.shape) == (dtype, shape)]
    outputs = sum(cell.outputs for cell in counted)
    return f"{sum(cell.equal for cell in counted)} of {outputs}" if outputs else ""
