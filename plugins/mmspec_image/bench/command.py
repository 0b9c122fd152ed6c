"""`mmspec bench image`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.bench.command import Quick
from mmspec.bench.methods import told
from mmspec.kits.pictures.bench.command import bench, refuse
from mmspec.kits.pictures.bench.options import BATCH, PROMPTS, REPEATS, WINDOW, BenchOptions

MODEL = "mmspec/emoji"


def bench_image(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Counted repeats, each of captions of its own.")
    ] = REPEATS,
    prompts: Annotated[int, typer.Option(min=1, max=32, help="Captions of a repeat; one picture each.")] = PROMPTS,
    window: Annotated[int, typer.Option(min=1, max=64, help="Codes that all methods draft per round.")] = WINDOW,
    batch: Annotated[int, typer.Option(min=0, max=32, help="Rows of the batch; 0 leaves batches out.")] = BATCH,
    seed: Annotated[int, typer.Option(help="Of the first picture; the others count up.")] = 0,
    model: Annotated[str, typer.Option(help="A shipped name, or the folder of a pipeline for captions.")] = MODEL,
    quick: Quick = False,
) -> None:
    """Compare methods, interleaved, with plain decoding: how fast pictures are drawn, and what they are like."""
    refuse(prompts * repeats, json, plot)
    methods = told(method)
    from mmspec_image.bench.run import bench_image as run

    options = BenchOptions(prompts=prompts, repeats=repeats, window=window, batch=batch, seed=seed)
    options = options.quick if quick else options
    bench("image", lambda progress: run(methods, options, device, progress, model), json, plot)
