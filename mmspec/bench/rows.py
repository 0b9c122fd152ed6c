"""From tracks to the rows of a result."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.memory import Footprint
from mmspec.bench.race import Run, Track
from mmspec.bench.tuning import Tuned
from mmspec.core.report import Report
from mmspec.report.result import Peer, Row


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

    Args:
        track: Its runs.
        plain: The runs of plain decoding in the same race.
        method: Its name.
        setting: What was decoded and how.
        mode: As in `Row`.
        batch: As in `Row`.
        memory: What it takes; None where it was not measured.
        quality: Numbers beside those that every row has: how much of the output is plain decoding's.
        options: What the method was run with.
        every: Acceptance and sameness are those of all repeats, whose tasks differ (`relay`), not of the median one.
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


def _reports(runs: Sequence[Run]) -> list[Report]:
    return [run.report for run in runs if run.report is not None]


def peer_of(track: Track, setting: str, note: str = "", *, ours: bool = False, tuned: Tuned | None = None) -> Peer:
    """Another decoding; without repeats where it failed, and the note says why.

    Args:
        track: Its runs.
        setting: What was decoded and how.
        note: How it was run.
        ours: Whether it is a loop of ours.
        tuned: What was tried before; None where there is nothing to choose.
    """
    if track.failure:
        return Peer(setting, [], 0, track.failure, ours)
    chosen, tried = ("", {}) if tuned is None else (tuned.chosen, dict(tuned.tried))
    return Peer(setting, track.repeats_s, sum(run.emitted for run in track.median), note, ours, chosen, tried)


def by_depth(reports: Sequence[Report]) -> list[int]:
    """How often depth 1, 2, … was accepted, summed over calls."""
    lists = [report.accepted_by_depth for report in reports]
    return [sum(counts[d] for counts in lists if d < len(counts)) for d in range(max(map(len, lists), default=0))]


def distinct(runs: Sequence[Run], n: int) -> float:
    """Share of the n-grams of an output that are different ones, mean over outputs: loops make it small."""
    shares = [_distinct(row, n) for run in runs for row in run.units if len(row) >= n]
    return sum(shares) / len(shares) if shares else 0.0


def _distinct(row: Tensor, n: int) -> float:
    grams = row.unfold(0, n, 1)
    return len(torch.unique(grams, dim=0)) / len(grams)
