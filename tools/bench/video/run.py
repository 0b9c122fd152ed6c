"""`python -m tools.bench video`: one model after the other; all methods of a model in turns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.race import Plan, planned
from mmspec.bench.timing import describe, versions
from mmspec.registry.suggest import unknown
from mmspec.report.result import PLAIN
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import folder_of, recorded
from tools.bench.video import codes, denoised, large
from tools.bench.video.looks import structural_similarity
from tools.bench.video.model_bench import ModelBench
from tools.bench.video.settings import GIVEN, BenchOptions, Ways, deep, methods_for, windowed
from tools.report.whole import Limits, WholeResult

HOW = (
    "A window is the units (codes and actions) drafted per round; the actions of recorded clips are known in advance "
    "there. With a player, seconds are those of waiting, from the moment an action is known to its frame: the "
    "player thinks for d frames' time of plain decoding, during which frames are made ahead for free; a hit is a frame "
    "that was there already; hit, miss, p50 and p95 of plain are multiples of plain's; discarded is frames that were "
    "made and never shown, per shown frame. The adversarial player never does what the model's default method guesses. "
    "PSNR (dB) and SSIM compare with the simulator's frame so many frames ahead. Turned as told: the share of frames "
    "behind a turn that moved the right way, of those that show where they moved. Frames become pixels off the clock."
)


@torch.no_grad()
def bench_video(
    methods: list[str] | None,
    options: BenchOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    models: Sequence[str],
) -> WholeResult:
    """Load pipelines and run.

    Args:
        methods: Names of methods; None: all that fit.
        options: How much is measured.
        device: Device; on a GPU the speed of a large model is measured, too.
        progress: Takes the plan, returns a function that is called after each call of a contestant.
        models: Names or folders of pipelines, one of which has recorded clips.

    Raises:
        ValueError: There is no such model, method or device, a method lacks something, there are no clips, or
            scikit-image is not installed.
    """
    pipes = [loaded(name, device) for name in models]
    clips = recorded([folder_of(name) for name in models])
    chosen = _chosen(methods, pipes)
    both, limits = zip(pipes, chosen, strict=True), Limits()
    benches = [ModelBench(pipe, clips, names, options, device, limits=limits) for pipe, names in both]
    tried, lacking = zip(*(_tried(bench) for bench in benches), strict=True)
    for name in methods or ():  # checked before anything is timed
        if name != PLAIN and not any(name in bench.methods for bench in benches):
            raise next(error for errors in lacking for error in errors)
    if options.whole:
        structural_similarity()
    on_gpu = device.startswith("cuda")
    tick = progress(_plan([_planned(bench, ways) for bench, ways in zip(benches, tried, strict=True)], on_gpu))
    for bench, ways in zip(benches, tried, strict=True):
        bench.tick = tick
        codes.measure(bench) if bench.coded else denoised.measure(bench, ways)
    rows = [row for bench in benches for row in bench.rows] + (large.large(device, tick) if on_gpu else [])
    return WholeResult(
        kind="video",
        model=" and ".join(models),
        device=describe(device),
        versions=versions(),
        seed=options.seed,
        prompts={"clips": min(options.repeats * options.clips, len(clips.frames))},
        rows=rows,
        peers={name: peer for bench in benches for name, peer in bench.peers.items()},
        limits=limits,
        unit="frame",
        piece="clip",
        how=f"Clips of at most {options.frames} new frames behind {GIVEN}. {HOW}"
        + ("" if on_gpu else f" Left out, since it wants a GPU: {large.SETTING}."),
    )


def _planned(bench: ModelBench, ways: Ways) -> Plan:
    """The plan of a model, estimated from one clip of plain decoding."""

    def calls(bench: ModelBench) -> int:
        return codes.calls_of(bench) if bench.coded else denoised.calls_of(bench, ways)

    options = bench.options
    shorter = calls(replace(bench, options=options.quick)) * options.quick.frames / options.frames
    return planned(calls(bench), calls(bench), shorter if options.whole else None, bench.once)


def _plan(plans: Sequence[Plan], on_gpu: bool) -> Plan:
    """The plan of all models together; the seconds of the large model are not estimated."""
    quick = [plan.quick for plan in plans if plan.quick is not None]
    calls = sum(plan.calls for plan in plans) + large.CALLS * on_gpu
    return Plan(calls, sum(plan.seconds for plan in plans), sum(quick) if quick else None)


def loaded(name: str, device: str) -> Any:
    """A `NextFramePipeline` with plain decoding.

    Raises:
        ValueError: There is no such model or device, or the model is of another kind.
    """
    pipe = mmspec.Pipeline.from_pretrained(name, device=device, method=PLAIN)
    if not isinstance(pipe, NextFramePipeline):
        raise ValueError(f"{name} makes no frames after actions: it is a {type(pipe).__name__}")
    return pipe


def _chosen(methods: list[str] | None, pipes: Sequence[Any]) -> list[tuple[str, ...]]:
    """The chosen methods that fit each model."""
    fit = [methods_for(pipe.transformer) for pipe in pipes]
    known = list(dict.fromkeys(name for names in fit for name in names))
    for name in methods or ():
        if name not in (PLAIN, *known):
            raise ValueError(unknown("method", name, known))
    return [tuple(name for name in names if methods is None or name in methods) for names in fit]


def _tried(bench: ModelBench) -> tuple[Ways, list[ValueError]]:
    """The ways to try, and why other methods cannot be tried (the model has no student, say); updates `methods`."""
    able, tried, lacking = list[str](), Ways(), list[ValueError]()
    for name in bench.methods:
        ways = windowed([name]) if bench.coded else deep([name], bench.options.ahead)
        for way, how in ways.items():
            try:
                decoder_for(bench.model, **decoder_arguments(how))
                tried[way] = how
            except ValueError as error:
                lacking.append(error)
        if not ways.keys().isdisjoint(tried):
            able.append(name)
    bench.methods = tuple(able)
    return tried, lacking
