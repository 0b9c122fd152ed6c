"""Denoised frames: the speed where all actions are known, with and without a cache; then the waits of players."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from mmspec.bench.race import Track
from mmspec.bench.rows import peer_of
from mmspec.bench.timing import timed
from mmspec.registry import installed
from mmspec.report.result import PLAIN
from mmspec_video.deviation import FrameReport
from tools.bench.video.clips import Task
from tools.bench.video.contestants import ClipMaker
from tools.bench.video.model_bench import ModelBench
from tools.bench.video.players import Pace, Player, adversarial, felt
from tools.bench.video.settings import (
    ADVERSARIAL,
    DELAYS,
    DENOISED,
    RECOMPUTING,
    RECORDED,
    REPEATING,
    STREAMING,
    Ways,
    playing,
)

NOTE = "plain decoding of ours that keeps no keys: the whole window anew in every step, in the manner of open-oasis"


def calls_of(bench: ModelBench, ways: Ways) -> int:
    """How often `bench.tick` will be called."""
    known = 2 + len(_alone(ways))
    players = 3 * len(DELAYS) * (1 + len(ways))
    return known * (bench.calls + 2 * bench.options.whole) + (1 + players) * bench.calls


def measure(bench: ModelBench, ways: Ways) -> None:
    """Add a model's rows.

    Args:
        bench: The model.
        ways: The methods, and what else they are tried with where a player acts.
    """
    _measure_known(bench, _alone(ways))
    makers = {name: ClipMaker(bench.model, how) for name, how in ways.items()}
    for trace, legs in _traces(bench.legs, foreseen(makers, bench.model)).items():
        for delay in DELAYS:
            pace = Pace()
            players = {PLAIN: Player(ClipMaker(bench.model), delay, pace, leads=True)}
            players |= {name: Player(maker, delay, pace) for name, maker in makers.items()}
            tracks = bench.relay(players, legs)
            for name, track in tracks.items():
                bench.add(playing(trace, delay), tracks, name, ways, felt(track, tracks[PLAIN]))


def _alone(ways: Ways) -> Ways:
    """The ways without branches, which make nothing where all actions are known."""
    return {name: how for name, how in ways.items() if "branches" not in how}


def foreseen(makers: Mapping[str, ClipMaker], model: Any) -> ClipMaker:
    """The maker whose guesses the adversarial player knows: the default method's, or else the first one."""
    target = installed().target_for(model)
    assert target is not None
    return makers.get(target.default_methods[0].method, next(iter(makers.values()), ClipMaker(model)))


def _measure_known(bench: ModelBench, ways: Ways) -> None:
    """Add the rows of the setting in which all actions are known."""
    plain = {PLAIN: ClipMaker(bench.model), STREAMING: ClipMaker(bench.model, cache="streaming")}
    makers = plain | {name: ClipMaker(bench.model, how) for name, how in ways.items()}
    tracks = bench.relay(makers | {RECOMPUTING: ClipMaker(bench.model, cache="none")}, bench.legs)
    for name, maker in makers.items():
        quality = _altered(tracks[name]) | bench.looks(maker)
        bench.add(DENOISED, tracks, name, ways, quality, bench.memory(maker))
        if name == STREAMING:
            bench.rows[-1] = replace(bench.rows[-1], exactness="lossy")
    recomputing = tracks[RECOMPUTING]
    bench.peers[f"{DENOISED} / {RECOMPUTING}"] = peer_of(recomputing, DENOISED, NOTE, ours=True)
    if not bench.options.whole:
        return
    both = zip(recomputing.every, tracks[PLAIN].every, strict=True)
    apart = max(float((own.units[0] - other.units[0]).abs().max()) for own, other in both)
    frame = bench.legs[0][0].first[0, :1]
    bench.limits.measured.update(
        {f"{DENOISED}, largest difference between kept keys and recomputing": apart}
        | {f"{DENOISED}, seconds of a frame's pixels": timed(lambda: bench.codec.decode(frame), bench.device)}
        | {f"{DENOISED}, {name}": value for name, value in bench.references().items()}
    )


def _traces(legs: list[list[Task]], maker: ClipMaker) -> dict[str, list[list[Task]]]:
    """The tasks with the actions of three players; the adversarial one knows the guesses of `maker`."""

    def played(act: Callable[[Task], Tensor]) -> list[list[Task]]:
        return [[replace(task, actions=act(task)) for task in leg] for leg in legs]

    return {
        REPEATING: played(lambda task: task.actions[:, :1].expand_as(task.actions)),
        RECORDED: legs,
        ADVERSARIAL: played(lambda task: adversarial(maker, task)),
    }


def _altered(track: Track) -> dict[str, float]:
    """The share of frames that a lossy method altered, and their mean distance, where that is measured."""
    reports = [run.report for run in track.every if isinstance(run.report, FrameReport)]
    found = [report.deviation for report in reports if report.deviation is not None and report.deviation.frames]
    if not found:
        return {}
    altered = round(sum(one.altered for one in found) / sum(one.frames for one in found), 4)
    measured = sum(one.measured for one in found)
    distance = {"off_by": round(sum(one.total for one in found) / measured, 4)} if measured else {}
    return {"altered": altered} | distance
