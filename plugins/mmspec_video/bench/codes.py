"""Frames of codes: every method at every window, against plain decoding of the same clips."""

from mmspec.bench.limits import NODES, loop_efficiency, pass_seconds
from mmspec.bench.rows import row_of
from mmspec.report.result import PLAIN
from mmspec_video.bench.contestants import Maker, same_frames
from mmspec_video.bench.settings import CODES, said, windowed
from mmspec_video.bench.side import Side
from mmspec_video.targets.token_frames import Clip, TokenFramesTarget


def calls_of(side: Side) -> int:
    """How often `tick` will be called."""
    return (1 + len(windowed(side.methods))) * (side.calls + 2 * side.options.whole)


def codes(side: Side) -> None:
    """Add a model's rows."""
    tried = windowed(side.methods)
    makers = {PLAIN: Maker(side.model)} | {name: Maker(side.model, how) for name, how in tried.items()}
    tracks = side.relay(makers, side.legs)
    passes = {name: sum(run.report.rounds for run in track.every) for name, track in tracks.items()}
    for name, track in tracks.items():
        both = zip(track.every, tracks[PLAIN].every, strict=True)
        same = [same_frames(own.units[0], other.units[0]) for own, other in both]
        quality = {
            "same_as_plain": round(sum(same) / len(same), 4),
            "step_compression": round(passes[PLAIN] / passes[name], 4),
            **side.looks(makers[name]),
        }
        how = {"method": name, "setting": CODES, "memory": side.takes(makers[name]), "every": True}
        side.rows.append(row_of(track, tracks[PLAIN], **how, quality=quality, options=said(tried.get(name, {}))))
    if side.options.whole:
        side.limits.measured.update({f"{CODES}, {name}": value for name, value in side.references().items()})
        _bound(side)


def _bound(side: Side) -> None:
    """What passes over N units cost, and what the rounds took beside them."""
    model = side.model
    most = max(int(nodes) for row in side.rows for nodes in row.passes_by_nodes)
    most = min(most, model.context - model.period - 1)
    task = side.legs[0][0]
    clip = Clip(task.first[:, :1], task.actions[:, :1])
    seconds = pass_seconds(TokenFramesTarget(model), clip, [n for n in NODES if n < most] + [most])
    side.limits.v_of_n.update({str(n): round(t / seconds[1], 4) for n, t in seconds.items()})
    side.limits.measured[f"{CODES}, seconds of a pass over one unit"] = seconds[1]
    for row in side.rows:
        if row.method != PLAIN:
            side.limits.F_pipe[f"{row.setting} / {row.method}"] = round(loop_efficiency(row, seconds), 4)
