"""Rows of a benchmark's result, computed from the tracks of a race."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mmspec.bench.race import Run, Track, Tuned
from mmspec.core.report import Report
from mmspec.report.result import Peer, Row


@dataclass(frozen=True)
class Footprint:
    peak: int  # weights, their copies, and the largest growth during a call
    laid_out: int  # the part of `peak` that is copies of weights, laid out for narrow passes


def row_of(
    track: Track,
    plain: Track,
    *,
    method: str,
    setting: str,
    mode: str = "real",
    batch: int = 1,
    memory: Footprint | None = None,
    quality: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
    every: bool = False,
) -> Row:
    """The row of one of our methods.

    `quality` are numbers about the output beside the share that equals plain decoding's, which ran in the same race.
    Under `every`, acceptance and equality are counted over all repeats, whose tasks differ (`relay`), instead of the
    median repeat.
    """
    median = track.median
    reports = _reports(median)
    counted, base = (track.every, plain.every) if every else (median, plain.median)
    accepted = _reports(counted)
    rounds = sum(report.row_rounds for report in accepted)
    same = [
        torch.equal(a, b)
        for own, other in zip(counted, base, strict=True)
        for a, b in zip(own.units, other.units, strict=True)
    ]
    return Row(
        method=method,
        exactness=reports[0].exactness,
        setting=setting,
        units=sum(run.emitted for run in median),
        target_passes=sum(report.rounds for report in reports),
        equivalent_passes=sum(report.equivalent_passes for report in reports),
        acceptance_length=sum(r.emitted - r.rows for r in accepted) / rounds if rounds else 0.0,
        acceptance_by_depth=[round(count / rounds, 4) for count in by_depth(accepted)] if rounds else [],
        repeats_s=track.repeats_s,
        plain_repeats_s=plain.repeats_s,
        draft_s=sum(r.seconds["draft"] for r in reports),
        verify_s=sum(r.seconds["verify"] for r in reports),
        rest_s=sum(r.seconds["rest"] for r in reports),
        peak_memory=None if memory is None else memory.peak,
        laid_out=None if memory is None else memory.laid_out,
        quality={"same_as_plain": sum(same) / len(same), **(quality or {})},
        mode=mode,
        batch=batch,
        options=dict(options or {}),
        passes_by_nodes={
            str(nodes): count for nodes, count in sorted(sum((r.sizes for r in reports), Counter()).items())
        },
    )


def seconds_and_speedup(track: Track, *bases: Track) -> tuple[str, ...]:
    """The median seconds of a repeat, and the speed-up over other tracks, as printed in columns that agree."""
    seconds, *others = (f"{statistics.median(each.repeats_s):#.3g}" for each in (track, *bases))
    return seconds, *(f"{float(base) / float(seconds):.2f}" for base in others)


def _reports(runs: Sequence[Run]) -> list[Report]:
    return [run.report for run in runs if run.report is not None]


def peer_of(track: Track, setting: str, note: str = "", *, ours: bool = False, tuned: Tuned | None = None) -> Peer:
    """The record of other software, or of a loop of `ours`; if it failed there are no repeats, and the note says why.
    `tuned` has the settings that were tried before, if there was a choice.
    """
    if track.failure:
        return Peer(setting, [], 0, track.failure, ours)
    chosen, tried = ("", {}) if tuned is None else (tuned.chosen, dict(tuned.tried))
    return Peer(setting, track.repeats_s, sum(run.emitted for run in track.median), note, ours, chosen, tried)


def by_depth(reports: Sequence[Report]) -> list[int]:
    """Number of row rounds that accepted depth 1, 2, …, summed over calls."""
    lists = [report.accepted_by_depth for report in reports]
    return [sum(counts[d] for counts in lists if d < len(counts)) for d in range(max(map(len, lists), default=0))]


def biases(reports: Sequence[Report | None]) -> dict[str, float]:
    """Distances of a lossy rule from the target, mean over calls that say so; empty for an exact rule."""
    measured = [asdict(report.bias) for report in reports if report is not None and report.bias is not None]
    names = measured[0] if measured else ()
    return {name: round(statistics.mean(bias[name] for bias in measured), 6) for name in names}
