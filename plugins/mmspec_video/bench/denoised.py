"""Denoised frames: nobody waits, and what keeping keys brings; then players who take their time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mmspec.bench.limits import timed
from mmspec.bench.race import Track
from mmspec.bench.rows import peer_of, row_of
from mmspec.registry import installed
from mmspec.report.result import PLAIN, Row
from mmspec_video.bench.clips import Task
from mmspec_video.bench.contestants import Maker, same_frames
from mmspec_video.bench.players import Pace, Player, adversarial, felt
from mmspec_video.bench.settings import (
    ADVERSARIAL,
    DELAYS,
    DENOISED,
    RECOMPUTING,
    RECORDED,
    REPEATING,
    STREAMING,
    playing,
    said,
)
from mmspec_video.bench.side import Side

Tried = dict[str, dict[str, Any]]
"""Options of `Maker`, by the name that a result gives them."""


def calls_of(side: Side, tried: Tried) -> int:
    """How often `tick` will be called."""
    alone = 2 + len(side.methods)
    return alone * (side.calls + 2 * side.options.whole) + side.calls + 3 * len(DELAYS) * (1 + len(tried)) * side.calls


def denoised(side: Side, tried: Tried) -> None:
    """Add a model's rows.

    Args:
        side: The model.
        tried: Our methods, and what else they are tried with where somebody plays.
    """
    _alone(side, {name: tried[name] for name in side.methods})
    makers = {name: Maker(side.model, how) for name, how in tried.items()}
    for trace, acted in _traces(side.legs, foreseen(makers, side.model)).items():
        for delay in DELAYS:
            pace = Pace()
            players = {PLAIN: Player(Maker(side.model), delay, pace, leads=True)}
            players |= {name: Player(maker, delay, pace) for name, maker in makers.items()}
            tracks = side.relay(players, acted)
            for name, track in tracks.items():
                quality = {"same_as_plain": _same(track, tracks[PLAIN]), **felt(track, tracks[PLAIN])}
                how = {"method": name, "setting": playing(trace, delay), "quality": quality}
                side.rows.append(_row(track, tracks[PLAIN], tried.get(name, {}), **how))


def foreseen(makers: Mapping[str, Maker], model: Any) -> Maker:
    """Whose guesses the adversary knows: the default method's, or else the first one's."""
    target = installed().target_for(model)
    assert target is not None
    return makers.get(target.default_method, next(iter(makers.values()), Maker(model)))


def _alone(side: Side, methods: Tried) -> None:
    """All actions are known at once."""
    kept = {PLAIN: Maker(side.model), STREAMING: Maker(side.model, cache="streaming")}
    makers = kept | {name: Maker(side.model, how) for name, how in methods.items()}
    legs = side.legs
    tracks = side.relay({**makers, RECOMPUTING: Maker(side.model, cache="none")}, legs)
    for name, maker in makers.items():
        quality = {"same_as_plain": _same(tracks[name], tracks[PLAIN])} | _off(tracks[name])
        how = {"method": name, "setting": DENOISED, "quality": quality | side.looks(maker), "memory": side.takes(maker)}
        row = _row(tracks[name], tracks[PLAIN], methods.get(name, {}), **how)
        side.rows.append(replace(row, exactness="lossy") if name == STREAMING else row)
    again = tracks[RECOMPUTING]
    note = "plain decoding of ours that keeps no keys: the whole window anew in every step, in the manner of open-oasis"
    side.peers[f"{DENOISED} / {RECOMPUTING}"] = peer_of(again, DENOISED, note, ours=True)
    both = zip(again.every, tracks[PLAIN].every, strict=True)
    apart = max(float((own.units[0] - other.units[0]).abs().max()) for own, other in both)
    if not side.options.whole:
        return
    made = legs[0][0].first[0, :1]
    side.limits.measured.update(
        {f"{DENOISED}, largest difference between kept keys and recomputing": apart}
        | {f"{DENOISED}, seconds of a frame's pixels": timed(lambda: side.codec.decode(made), side.device)}
        | {f"{DENOISED}, {name}": value for name, value in side.references().items()}
    )


def _traces(legs: list[list[Task]], maker: Maker) -> dict[str, list[list[Task]]]:
    """The same clips, played by others; the adversary is that of `maker`'s guesses."""

    def acted(act: Any) -> list[list[Task]]:
        return [[replace(task, actions=act(task)) for task in leg] for leg in legs]

    return {
        REPEATING: acted(lambda task: task.actions[:, :1].expand_as(task.actions)),
        RECORDED: legs,
        ADVERSARIAL: acted(lambda task: adversarial(maker, task)),
    }


def _row(track: Track, plain: Track, tried: dict[str, Any], **how: Any) -> Row:
    return row_of(track, plain, **how, every=True, options=said(tried))


def _off(track: Track) -> dict[str, float]:
    """Of a lossy method: share of the frames that are not plain's, and how far off they are, where that is measured."""
    found = [getattr(run.report, "deviation", None) for run in track.every]
    known = [one for one in found if one is not None and one.made]
    if not known:
        return {}
    off = {"altered": round(sum(one.altered for one in known) / sum(one.made for one in known), 4)}
    measured = sum(one.measured for one in known)
    return off | ({"off_by": round(sum(one.total for one in known) / measured, 4)} if measured else {})


def _same(track: Track, plain: Track) -> float:
    both = zip(track.every, plain.every, strict=True)
    shares = [same_frames(own.units[0], other.units[0]) for own, other in both]
    return round(sum(shares) / len(shares), 4)
