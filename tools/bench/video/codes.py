"""Frames of codes: every method at every window, against plain decoding of the same clips."""

from mmspec.bench.timing import NODES, pass_seconds
from mmspec.report.result import PLAIN
from mmspec_video.targets.token_frames import TokenFramesTarget, TokenPrompt
from tools.bench.limits import loop_efficiency
from tools.bench.video.contestants import ClipMaker
from tools.bench.video.model_bench import ModelBench
from tools.bench.video.settings import CODES, windowed


def calls_of(bench: ModelBench) -> int:
    """How often `bench.tick` will be called."""
    return (1 + len(windowed(bench.methods))) * (bench.calls + 2 * bench.options.whole)


def measure(bench: ModelBench) -> None:
    """Add a model's rows."""
    ways = windowed(bench.methods)
    makers = {PLAIN: ClipMaker(bench.model)} | {name: ClipMaker(bench.model, how) for name, how in ways.items()}
    tracks = bench.relay(makers, bench.legs)
    passes = {
        name: sum(run.report.rounds for run in track.every if run.report is not None) for name, track in tracks.items()
    }
    for name, maker in makers.items():
        compression = {"step_compression": round(passes[PLAIN] / passes[name], 4)}
        bench.add(CODES, tracks, name, ways, compression | bench.looks(maker), bench.memory(maker))
    if bench.options.whole:
        bench.limits.measured.update({f"{CODES}, {name}": value for name, value in bench.references().items()})
        _measure_passes(bench)


def _measure_passes(bench: ModelBench) -> None:
    """Seconds of passes over N units, and what the loop took beside them."""
    model = bench.model
    most = max(int(nodes) for row in bench.rows for nodes in row.passes_by_nodes)
    most = min(most, model.context - model.period - 1)
    task = bench.legs[0][0]
    prompt = TokenPrompt(task.first[:, :1], task.actions[:, :1])
    seconds = pass_seconds(TokenFramesTarget(model), prompt, [n for n in NODES if n < most] + [most])
    bench.limits.v_of_n.update({str(n): round(t / seconds[1], 4) for n, t in seconds.items()})
    bench.limits.measured[f"{CODES}, seconds of a pass over one unit"] = seconds[1]
    for row in bench.rows:
        if row.method != PLAIN:
            bench.limits.F_pipe[f"{row.setting} / {row.method}"] = round(loop_efficiency(row, seconds), 4)
