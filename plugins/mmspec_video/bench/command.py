"""`mmspec bench video`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.bench.command import Quick
from mmspec.bench.methods import told
from mmspec_video.bench.settings import MODELS, BenchOptions

DEFAULT = BenchOptions()


def bench_video(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all that fit.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …; a GPU is asked how fast a large model is, too.")] = "cpu",
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Counted repeats, each of clips of its own.")
    ] = DEFAULT.repeats,
    clips: Annotated[int, typer.Option(min=1, max=8, help="Clips of a repeat.")] = DEFAULT.clips,
    frames: Annotated[int, typer.Option(min=3, max=10_000, help="New frames of a clip, at most.")] = DEFAULT.frames,
    ahead: Annotated[int, typer.Option(min=1, max=8, help="Actions that are guessed ahead.")] = DEFAULT.ahead,
    seed: Annotated[int, typer.Option(help="Of the first clip; the others count up.")] = DEFAULT.seed,
    model: Annotated[str, typer.Option(help="Shipped names, or folders of pipelines, joined by commas.")] = ",".join(
        MODELS
    ),
    quick: Quick = False,
) -> None:
    """Compare methods, interleaved, with plain decoding; players who wait; how near frames are to the simulator's."""
    from mmspec.kits.pictures.bench.command import bench, refuse

    refuse(2, json, plot)
    methods = told(method)
    from mmspec_video.bench.run import bench_video as run

    options = BenchOptions(repeats=repeats, clips=clips, frames=frames, ahead=ahead, seed=seed)
    options = options.quick if quick else options
    bench("video", lambda progress: run(methods, options, device, progress, model.split(",")), json, plot)
