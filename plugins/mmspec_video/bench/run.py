"""`mmspec bench video`: every model that was asked for, one after the other; all of a model's methods in turns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.machine import describe, versions
from mmspec.bench.plan import Plan, planned
from mmspec.hosts.loading import locate_pipeline
from mmspec.registry.suggest import unknown
from mmspec.report.result import PLAIN, Limits, Result
from mmspec_video.bench import large
from mmspec_video.bench.clips import recorded
from mmspec_video.bench.codes import calls_of as calls_of_codes
from mmspec_video.bench.codes import codes
from mmspec_video.bench.denoised import Tried, denoised
from mmspec_video.bench.denoised import calls_of as calls_of_denoised
from mmspec_video.bench.settings import GIVEN, BenchOptions, deep, given, methods_for, windowed
from mmspec_video.bench.side import Side
from mmspec_video.pipeline import NextFramePipeline

HOW = (
    "A window is the units (codes and actions) drafted per round; the actions of recorded clips are known in advance "
    "there. Where somebody plays, seconds are those of waiting, from the moment an action is known to its frame: the "
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
) -> Result:
    """Load pipelines and run.

    Args:
        methods: Which of ours; None for all that fit.
        options: How much.
        device: Where; on a GPU, how fast a large model is, too.
        progress: Given what is ahead, returns what is called after each call.
        models: Names or folders of pipelines, one of which has recorded clips beside it.

    Raises:
        ValueError: There is no such model, method or device, a method lacks something, or there are no clips.
    """
    pipes = [loaded(name, device) for name in models]
    clips = recorded([folder_of(name) for name in models])
    chosen = _chosen(methods, pipes)
    sides = [Side(pipe, clips, names, options, device) for pipe, names in zip(pipes, chosen, strict=True)]
    tried, lacking = zip(*(_tried(side) for side in sides), strict=True)
    for name in methods or ():  # checked before anything is timed
        if name != PLAIN and not any(name in side.methods for side in sides):
            raise next(error for errors in lacking for error in errors)
    on_gpu = device.startswith("cuda")
    tick = progress(_plan([_planned(side, ways) for side, ways in zip(sides, tried, strict=True)], on_gpu))
    for side, ways in zip(sides, tried, strict=True):
        side.tick = tick
        codes(side) if side.coded else denoised(side, ways)
    rows = [row for side in sides for row in side.rows] + (large.large(device, tick) if on_gpu else [])
    return Result(
        kind="video",
        model=" and ".join(models),
        device=describe(device),
        versions=versions(),
        seed=options.seed,
        prompts={"clips": min(options.repeats * options.clips, len(clips.frames))},
        rows=rows,
        peers={name: peer for side in sides for name, peer in side.peers.items()},
        limits=_limits(sides),
        unit="frame",
        piece="clip",
        how=f"Clips of at most {options.frames} new frames behind {GIVEN}. {HOW}"
        + ("" if on_gpu else f" Left out, since it wants a GPU: {large.SETTING}."),
    )


def _planned(side: Side, tried: Tried) -> Plan:
    """What is ahead for a model, from one clip of plain decoding."""

    def work(side: Side) -> int:
        return calls_of_codes(side) if side.coded else calls_of_denoised(side, tried)

    options = side.options
    shorter = work(replace(side, options=options.quick)) * options.quick.frames / options.frames
    return planned(work(side), work(side), shorter if options.whole else None, side.once)


def _plan(plans: Sequence[Plan], on_gpu: bool) -> Plan:
    """Of all models together; the large one of a GPU takes as long as it takes."""
    quick = [plan.quick for plan in plans if plan.quick is not None]
    calls = sum(plan.calls for plan in plans) + large.CALLS * on_gpu
    return Plan(calls, sum(plan.seconds for plan in plans), sum(quick) if quick else None)


def loaded(name: str, device: str) -> Any:
    """A pipeline of frames, decoding plainly.

    Raises:
        ValueError: There is no such model or device, or it makes something else.
    """
    pipe = mmspec.Pipeline.from_pretrained(name, device=device, method=PLAIN)
    if not isinstance(pipe, NextFramePipeline):
        raise ValueError(f"{name} makes no frames after actions: it is a {type(pipe).__name__}")
    return pipe


def folder_of(name: str) -> Path:
    """Where a pipeline that was loaded lies."""
    folder = locate_pipeline(name)
    assert folder is not None, "a pipeline that is not on this machine is refused when it is loaded"
    return folder


def _chosen(methods: list[str] | None, pipes: Sequence[Any]) -> list[tuple[str, ...]]:
    """Of every model, the methods that fit it."""
    fit = [methods_for(pipe.transformer) for pipe in pipes]
    known = list(dict.fromkeys(name for names in fit for name in names))
    for name in methods or ():
        if name not in (PLAIN, *known):
            raise ValueError(unknown("method", name, known))
    return [tuple(name for name in names if methods is None or name in methods) for names in fit]


def _tried(side: Side) -> tuple[Tried, list[ValueError]]:
    """What is tried of a model's methods, and why others cannot be: they lack a student that nobody trained, say."""
    able, tried, lacking = [], Tried(), []
    for name in side.methods:
        ways = windowed([name]) if side.coded else deep([name], side.options.ahead)
        try:
            for how in ways.values():
                decoder_for(side.model, **given(how))
        except ValueError as error:
            lacking.append(error)
        else:
            able.append(name)
            tried |= ways
    side.methods = tuple(able)
    return tried, lacking


def _limits(sides: Sequence[Side]) -> Limits:
    """Those of all models together; passes over N units are those of codes."""
    made = Limits()
    for side in sides:
        made.v_of_n.update(side.limits.v_of_n)
        made.F_pipe.update(side.limits.F_pipe)
        made.measured.update(side.limits.measured)
    return made
