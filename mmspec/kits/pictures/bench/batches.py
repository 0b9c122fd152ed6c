"""A batch against its rows one by one: the same captions, the same seeds, the same method."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.race import race
from mmspec.bench.rows import row_of
from mmspec.kits.pictures.bench.contestants import Call, OneByOne, Ours
from mmspec.kits.pictures.bench.options import said
from mmspec.kits.pictures.bench.tasks import Task
from mmspec.report.result import PLAIN, Row

REPEATS = 3


def batch_rows(
    call: Call,
    together: Task,
    rows: Sequence[Task],
    methods: Mapping[str, Mapping[str, Any]],
    setting: str,
    tick: Callable[[], None],
    same: Callable[[Tensor, Tensor], bool] = torch.equal,
) -> list[Row]:
    """Rows of one batch, of plain decoding and of `methods`.

    Their quality holds `same_as_alone`, the share of pictures equal to the picture drawn alone; `alone_repeats_s` has
    the seconds of the batch's rows one after the other.

    Args:
        call: How pictures are drawn.
        together: All rows in one call.
        rows: The rows as tasks of their own.
        methods: Options of `decoder_for`, by the name that a result gives them.
        setting: What it is called in a result.
        tick: Called after every call.
        same: Whether two pictures' units are equal.
    """
    ours = {PLAIN: Ours(call)} | {name: Ours(call, how) for name, how in methods.items()}
    alone = {f"{name}, alone": OneByOne(contestant, rows) for name, contestant in ours.items()}
    tracks = race({**ours, **alone}, [together], REPEATS, tick=tick)
    made = []
    for name in ours:
        own, apart = tracks[name], tracks[f"{name}, alone"]
        equal = [same(a, b) for a, b in zip(own.median[0].units, apart.median[0].units, strict=True)]
        quality = {"same_as_alone": statistics.mean(equal)}
        row = row_of(own, tracks[PLAIN], method=name, setting=setting, batch=len(equal), quality=quality)
        made.append(replace(row, options=said(methods.get(name, {})), alone_repeats_s=apart.repeats_s))
    return made
