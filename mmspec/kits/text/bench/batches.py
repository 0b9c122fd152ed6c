"""A batch compared with its rows one by one: the same prompts and method, under a policy that may draft nothing."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.generate import GenerateCall
from mmspec.bench.race import Run, race
from mmspec.bench.rows import row_of
from mmspec.core.report import Report
from mmspec.kits.text.bench.contestants import OurMethod
from mmspec.kits.text.bench.settings import BATCHED, BenchOptions, Subject, batch, named
from mmspec.report.result import PLAIN, Row


def batch_rows(
    call: GenerateCall,
    subject: Subject,
    methods: Mapping[str, Mapping[str, Any]],
    kind: str,
    pieces: Sequence[Tensor],
    options: BenchOptions,
    tick: Callable[[], None],
) -> list[Row]:
    """Result rows for one batch of prompts of several lengths.

    Args:
        call: How `generate` is called.
        subject: The benchmark.
        methods: Our methods with their options; those in `BATCHED` take part.
        kind: The kind of the texts.
        pieces: Texts; their beginnings are the prompts.
        options: The size of the benchmark.
        tick: Called after every call.

    Returns:
        One row per method. Its quality holds `same_as_alone`, the share of rows of the batch whose output equals that
        of the row alone; `alone_repeats_s` has the seconds of the batch's rows one after the other.
    """
    inputs = batch(pieces, options.batch, str(call.model.device))
    batched = {PLAIN: OurMethod(call, {"method": PLAIN})}
    batched |= {m: OurMethod(call, {"method": m, **o, "policy": "goodput"}) for m, o in methods.items() if m in BATCHED}
    alone = {f"{name}, alone": _OneByOne(contestant) for name, contestant in batched.items()}
    tracks = race({**batched, **alone}, [inputs], options.repeats, tick=tick)
    rows = []
    for name in batched:
        together, apart = tracks[name], tracks[f"{name}, alone"]
        equal = [torch.equal(a, b) for a, b in zip(together.median[0].units, apart.median[0].units, strict=True)]
        quality = {"same_as_alone": statistics.mean(equal)}
        how: dict[str, Any] = {"method": name, "setting": named(kind, 0.0), "batch": len(equal), "quality": quality}
        own = {} if name == PLAIN else {**subject.methods.get(name, {}), "policy": "goodput"}
        row = row_of(together, tracks[PLAIN], **how)
        rows.append(replace(row, options=own, alone_repeats_s=apart.repeats_s))
    return rows


class _OneByOne:
    """A contestant that decodes the rows of a batch one by one, without their padding."""

    def __init__(self, contestant: OurMethod) -> None:
        self._contestant = contestant

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        runs = []
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            kept = ids[mask.bool()][None]
            runs.append(self._contestant({"input_ids": kept, "attention_mask": torch.ones_like(kept)}))
        return Run(sum(run.seconds for run in runs), [run.units[0] for run in runs], Report())
