"""Benchmarks of pipelines: methods in turns with plain decoding, on prompts of the user's or ours. Speed alone.

A modality is data: how its pipelines are called, and the words for what they make.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.methods import own_methods
from mmspec.bench.race import Plan, Run, planned, relay
from mmspec.bench.rows import biases, row_of
from mmspec.bench.timing import called, describe, versions
from mmspec.report.result import PLAIN, Result, Row


@dataclass(frozen=True)
class Modality:
    """Facts of a kind of pipelines for benchmarks."""

    kind: str  # of the result
    unit: str  # word for what a method drafts and a pass emits
    piece: str  # word for what a call makes
    # Arguments of a pipeline's calls, one piece each: of the user's own prompts, or of so many of ours; the last says
    # whether the pieces should be short
    calls: Callable[[Any, list[str] | int, bool], list[Mapping[str, Any]]]
    units: Callable[[Any], list[Tensor]]  # the units of every row, of a pipeline's output under `latent`


@dataclass(frozen=True)
class Size:
    repeats: int  # counted repeats, each with seeds of its own
    window: int | None  # units that all methods draft per round; None: each method's own default
    seed: int  # seed of the first piece; the others count up
    quick: bool = False  # whether pieces are few and short

    @property
    def shorter(self) -> "Size":
        return replace(self, repeats=min(self.repeats, 2), quick=True)


@dataclass(frozen=True)
class PipelineCall:
    """A contestant: the pipeline with a method that is chosen anew for every call, so that no drafter remembers any."""

    pipe: Any
    modality: Modality
    how: Mapping[str, Any]  # arguments of `use`

    def __call__(self, call: Mapping[str, Any]) -> Run:
        self.pipe.use(**self.how)
        seconds, output = called(lambda: self.pipe(**call, output_type="latent"), str(self.pipe.device))
        return Run(seconds, self.modality.units(output), output.report)


@torch.no_grad()
def bench_pipeline(
    modality: Modality,
    model: str,
    methods: Sequence[str] | None,
    prompts: list[str] | int,
    size: Size,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
) -> Result:
    """Load a pipeline and run.

    Beside plain decoding run the methods, or all of the plugin that can be built for the model; on the user's own
    prompts, or so many of ours. `progress` takes the plan and returns what is called after each call.
    """
    pipe = mmspec.Pipeline.from_pretrained(model, device=device, method=PLAIN)
    pipe.set_progress_bar_config(disable=True)
    calls = modality.calls(pipe, prompts, size.quick)
    ways = {PLAIN: {"method": PLAIN}, **_ways(getattr(pipe, pipe.target_module), methods, size.window)}
    contestants = {name: PipelineCall(pipe, modality, how) for name, how in ways.items()}
    legs = [
        [{**call, "seed": size.seed + leg * len(calls) + number} for number, call in enumerate(calls)]
        for leg in range(size.repeats)
    ]
    each = len(contestants) * (1 + len(calls) * size.repeats)
    quick = None if size.quick else len(contestants) * (1 + len(calls) * size.shorter.repeats)
    tick = progress(planned(each, each, quick, lambda: contestants[PLAIN](legs[0][0])))
    tracks = relay(contestants, legs, legs[0][:1], tick=tick)
    return Result(
        kind=modality.kind,
        model=model,
        device=describe(device),
        versions=versions(),
        seed=size.seed,
        prompts={"prompts": len(calls)},
        rows=[_row(tracks, name, how) for name, how in ways.items()],
        peers={},
        unit=modality.unit,
        piece=modality.piece,
        how=f"Every repeat has all {len(calls)} prompts, with seeds of its own.",
    )


def _ways(model: Any, methods: Sequence[str] | None, window: int | None) -> dict[str, dict[str, Any]]:
    """Arguments of `use` by method. Methods that the user did not name are left out where they cannot be built."""
    ways = {}
    for name in [pairing.method.name for pairing in own_methods(model)] if methods is None else methods:
        try:
            decoder_for(model, name, k=window)
        except ValueError:
            if methods is not None:
                raise
        else:
            ways[name] = {"method": name} | ({} if window is None else {"k": window})
    ways.pop(PLAIN, None)
    return ways


def _row(tracks: Mapping[str, Any], name: str, how: Mapping[str, Any]) -> Row:
    track, options = tracks[name], {option: value for option, value in how.items() if option != "method"}
    quality = biases([run.report for run in track.every])
    row = row_of(track, tracks[PLAIN], method=name, setting="prompts", quality=quality, options=options, every=True)
    if not track.every[0].units[0].is_floating_point():
        return row
    # Continuous units are equal in distribution, or up to rounding.
    return replace(row, quality={key: value for key, value in row.quality.items() if key != "same_as_plain"})
