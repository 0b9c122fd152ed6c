"""A batch against its rows one by one: the same prompts, the same method, zero drafts allowed."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.race import Run, race
from mmspec.bench.rows import row_of
from mmspec.core.report import Report
from mmspec.kits.text.bench.contestants import GenerateCall, OurMethod
from mmspec.kits.text.bench.settings import BATCHED, BenchOptions, Subject, batch
from mmspec.report.result import PLAIN, Row


def batch_rows(
    call: GenerateCall,
    subject: Subject,
    methods: Mapping[str, Mapping[str, Any]],
    pieces: Sequence[Tensor],
    options: BenchOptions,
    tick: Callable[[], None],
) -> list[Row]:
    """Rows of one batch of prompts of several lengths.

    Their quality holds `same_as_alone`, the share of rows equal to the row decoded alone; `alone_repeats_s` has the
    seconds of the batch's rows one after the other.
    """
    inputs = batch(pieces, options.batch, str(call.model.device))
    ours = {PLAIN: OurMethod(call, {"method": PLAIN})}
    ours |= {m: OurMethod(call, {"method": m, **o, "policy": "goodput"}) for m, o in methods.items() if m in BATCHED}
    alone = {f"{name}, alone": _OneByOne(contestant) for name, contestant in ours.items()}
    tracks = race({**ours, **alone}, [inputs], options.repeats, tick=tick)
    rows = []
    for name in ours:
        together, apart = tracks[name], tracks[f"{name}, alone"]
        equal = [torch.equal(a, b) for a, b in zip(together.median[0].units, apart.median[0].units, strict=True)]
        quality = {"same_as_alone": statistics.mean(equal)}
        how: dict[str, Any] = {"method": name, "setting": "code, greedy", "batch": len(equal), "quality": quality}
        given = {} if name == PLAIN else {**subject.methods.get(name, {}), "policy": "goodput"}
        row = row_of(together, tracks[PLAIN], **how)
        rows.append(replace(row, options=given, alone_repeats_s=apart.repeats_s))
    return rows


class _OneByOne:
    """The rows of a batch, each alone and without its padding."""

    def __init__(self, contestant: OurMethod) -> None:
        self._contestant = contestant

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        runs = []
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            kept = ids[mask.bool()][None]
            runs.append(self._contestant({"input_ids": kept, "attention_mask": torch.ones_like(kept)}))
        return Run(sum(run.seconds for run in runs), [run.units[0] for run in runs], Report())
