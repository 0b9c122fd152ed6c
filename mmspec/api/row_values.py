"""Cells of a table as arguments of a pipeline; a pipeline's outputs, and the reports of its calls, as cells."""

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.core.report import PHASES, Report


def seed_of(seed: int, id: str) -> int:
    """A row's own seed: the first 8 bytes of blake2b of `"{seed}/{id}"`, as a big-endian integer."""
    return int.from_bytes(blake2b(f"{seed}/{id}".encode()).digest()[:8], "big")


def is_missing(value: Any) -> bool:
    """True if a cell of a table is empty: None, or the NaN that columns of numbers have instead."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def ids_of(values: Iterable[Any], column: str) -> list[str]:
    """The ids of rows as texts; refuses one that is missing, stands twice, or is neither a text nor an integer."""
    values = list(values)
    for number, value in enumerate(values):
        if is_missing(value) or value == "":
            raise ValueError(f"row {number} has no id in the column {column!r}; a row's seed is made of its id")
        if isinstance(value, bool) or not isinstance(value, str | Integral):
            raise ValueError(f"row {number} has the id {value!r}; an id is a text or an integer")
    ids = [str(value) for value in values]
    id, times = Counter(ids).most_common(1)[0] if ids else ("", 0)
    if times > 1:
        raise ValueError(f"the id {id!r} stands {times} times in the column {column!r}; ids name one row each")
    return ids


@runtime_checkable
class Texts(Protocol):
    """The output of a call that writes."""

    texts: Sequence[str]


@runtime_checkable
class Pictures(Protocol):
    """The output of a call that draws; PIL pictures."""

    images: Sequence[Image.Image]


@runtime_checkable
class Clips(Protocol):
    """The output of a call that makes frames; PIL pictures `frames[row][i]`."""

    frames: Sequence[Sequence[Image.Image]]
    fps: int


def argument(value: Any) -> Any:
    """A cell as an argument: numpy's numbers as Python's, its arrays as lists, a picture as `[1, 3, h, w]` uint8."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        with Image.open(io.BytesIO(value)) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)[None]
    if isinstance(value, np.ndarray):
        return value.tolist()
    # A column of integers with empty cells comes as floats.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape that arguments of one call share: a picture's, a list's length, none of texts and numbers."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return (len(value),) if isinstance(value, list) else ()


def together(values: Sequence[Any]) -> Any:
    """Arguments of several rows as one: a stack of pictures, or a list."""
    return torch.stack(list(values)) if isinstance(values[0], Tensor) else list(values)


def objects(values: Sequence[Any]) -> np.ndarray:
    """A column of any contents."""
    column = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        column[number] = value
    return column


def cells(output: Any) -> list[str | bytes]:
    """A pipeline's outputs as cells, one a row: texts, PNG, or GIF."""
    if isinstance(output, Texts):
        return list(output.texts)
    if isinstance(output, Clips):
        return [_gif(frames, output.fps) for frames in output.frames]
    if isinstance(output, Pictures):
        return [png(picture) for picture in output.images]
    raise TypeError(f"{type(output).__name__} has neither texts nor images nor frames")


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _gif(frames: Sequence[Image.Image], fps: int) -> bytes:
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=list(frames[1:]), duration=round(1000 / fps), loop=0)
    return file.getvalue()


COUNTERS = ("rows", "emitted", "rounds", "row_rounds", "inner_passes", "drafted", "accepted", "faults")
"""Numbers that add up over calls, as in `mmspec.core.report.Report`."""


def as_json(report: Report) -> str:
    """A call's counters, the seconds of its phases, and what the method promises."""
    counters = {name: getattr(report, name) for name in COUNTERS}
    seconds = {name: round(report.seconds[name], 6) for name in PHASES}
    return json.dumps({"method": report.method, "exactness": report.exactness, **counters, "seconds": seconds})


def summed(reports: Iterable[str]) -> dict[str, Any]:
    """The sums of texts of `as_json`, with the acceptance length and the acceptance rate of all calls together."""
    read: list[Mapping[str, Any]] = [json.loads(report) for report in reports]
    total: dict[str, Any] = {name: sum(one[name] for one in read) for name in COUNTERS}
    passes, drafted = total["row_rounds"], total["drafted"]
    return {
        "calls": len(read),
        "methods": sorted({f"{one['method']} ({one['exactness']})" for one in read}),
        **total,
        "acceptance_length": (total["emitted"] - total["rows"]) / passes if passes else 0.0,
        "acceptance_rate": total["accepted"] / drafted if drafted else 0.0,
        "seconds": {name: sum(one["seconds"][name] for one in read) for name in PHASES},
    }
