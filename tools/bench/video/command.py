"""`python -m tools.bench video`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.bench.command import Quick
from mmspec.bench.methods import chosen_methods
from tools.bench.video.settings import MODELS, BenchOptions

DEFAULT = BenchOptions()


def bench_video(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all that fit.")] = None,
    json: Annotated[Path | None, typer.Option(help="File for the result, raw repeats included.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for a plot (.png, .svg); needs the extra `bench`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …; on a GPU a large model is measured, too.")] = "cpu",
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Counted repeats, each with other clips.")
    ] = DEFAULT.repeats,
    clips: Annotated[int, typer.Option(min=1, max=8, help="Clips of a repeat.")] = DEFAULT.clips,
    frames: Annotated[int, typer.Option(min=3, max=10_000, help="Most new frames of a clip.")] = DEFAULT.frames,
    ahead: Annotated[int, typer.Option(min=1, max=8, help="Actions that are guessed ahead.")] = DEFAULT.ahead,
    seed: Annotated[
        int, typer.Option(help="Seed of the first clip; the others have consecutive seeds.")
    ] = DEFAULT.seed,
    model: Annotated[str, typer.Option(help="Shipped names, or folders of pipelines, joined by commas.")] = ",".join(
        MODELS
    ),
    quick: Quick = False,
) -> None:
    """Compare methods with plain decoding, in turns: speed, waits of players, and fidelity to the simulator."""
    from tools.bench.pictures.command import bench, refuse

    refuse(2, json, plot)
    methods = chosen_methods(method)
    from tools.bench.video.run import bench_video as run

    options = BenchOptions(repeats=repeats, clips=clips, frames=frames, ahead=ahead, seed=seed)
    options = options.quick if quick else options
    bench("video", lambda progress: run(methods, options, device, progress, model.split(",")), json, plot)
