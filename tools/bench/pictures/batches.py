"""A batch compared with its rows one by one: the same captions, seeds and method."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.race import race
from mmspec.bench.rows import row_of
from mmspec.report.result import PLAIN, Row
from tools.bench.pictures.contestants import OwnMethod, PictureSampler, RowByRow
from tools.bench.pictures.options import shown_options
from tools.bench.pictures.tasks import Task

REPEATS = 3


def batch_rows(
    sampler: PictureSampler,
    together: Task,
    rows: Sequence[Task],
    methods: Mapping[str, Mapping[str, Any]],
    setting: str,
    tick: Callable[[], None],
    same: Callable[[Tensor, Tensor], bool] = torch.equal,
) -> list[Row]:
    """Rows of one batch, of plain decoding and of `methods`.

    `quality` holds `same_as_alone`, the share of pictures equal to the picture drawn alone; `alone_repeats_s` has the
    seconds of the batch's rows one after the other.

    Args:
        sampler: How pictures are drawn.
        together: All rows in one call.
        rows: The rows as tasks of their own.
        methods: Options of `decoder_for`, by the name that a result gives them.
        setting: The setting's name in a result.
        tick: Called after every call.
        same: Whether two pictures' units are equal.
    """
    ours = {PLAIN: OwnMethod(sampler)} | {name: OwnMethod(sampler, options) for name, options in methods.items()}
    alone = {f"{name}, alone": RowByRow(method, rows) for name, method in ours.items()}
    tracks = race({**ours, **alone}, [together], REPEATS, tick=tick)
    result = []
    for name in ours:
        own, each = tracks[name], tracks[f"{name}, alone"]
        equal = [same(a, b) for a, b in zip(own.median[0].units, each.median[0].units, strict=True)]
        quality = {"same_as_alone": statistics.mean(equal)}
        row = row_of(own, tracks[PLAIN], method=name, setting=setting, batch=len(equal), quality=quality)
        result.append(replace(row, options=shown_options(methods.get(name, {})), alone_repeats_s=each.repeats_s))
    return result
