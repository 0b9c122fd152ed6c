"""`mmspec bench continuous` and `mmspec bench denoising`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.bench.command import Quick
from mmspec.bench.methods import told
from mmspec.kits.pictures.bench.command import bench, refuse
from mmspec.kits.pictures.bench.options import BATCH, PROMPTS, REPEATS, BenchOptions

MODEL = "mmspec/emoji-continuous"
WINDOW = 16

Json = Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")]
Plot = Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]


def bench_continuous(
    method: Annotated[
        str | None, typer.Option(help="Methods, joined by commas; default: all without a drafter.")
    ] = None,
    json: Json = None,
    plot: Plot = None,
    device: Device = "cpu",
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Counted repeats, each of captions of its own.")
    ] = REPEATS,
    prompts: Annotated[int, typer.Option(min=1, max=32, help="Captions of a repeat; one picture each.")] = PROMPTS,
    window: Annotated[int, typer.Option(min=1, max=64, help="Tokens that all methods draft per round.")] = WINDOW,
    batch: Annotated[int, typer.Option(min=0, max=32, help="Rows of the batch; 0 leaves batches out.")] = BATCH,
    seed: Annotated[int, typer.Option(help="Of the first picture; the others count up.")] = 0,
    model: Annotated[str, typer.Option(help="A shipped name, or the folder of a pipeline for captions.")] = MODEL,
    quick: Quick = False,
) -> None:
    """Compare methods and honest baselines, interleaved, with plain decoding; the head's time stands apart."""
    refuse(prompts * repeats, json, plot)
    methods = told(method)
    from mmspec_continuous.bench.run import bench_continuous as run

    options = BenchOptions(prompts=prompts, repeats=repeats, window=window, batch=batch, seed=seed)
    options = options.quick if quick else options
    bench("continuous", lambda progress: run(methods, options, device, progress, model), json, plot)


def bench_denoising(
    json: Json = None,
    plot: Plot = None,
    device: Device = "cpu",
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Counted repeats, each of seeds of its own.")] = 4,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Samples of a repeat, one at a time.")] = 4,
    steps: Annotated[int, typer.Option(min=2, max=1000, help="Denoising steps.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the first sample; the others count up.")] = 0,
    quick: Quick = False,
) -> None:
    """Count the serial network calls of speculative denoising in a diffusers pipeline, whose weights are random."""
    refuse(2, json, plot)
    from mmspec_continuous.bench.denoising import DenoisingOptions
    from mmspec_continuous.bench.denoising import bench_denoising as run

    options = DenoisingOptions(samples=samples, repeats=repeats, steps=steps, seed=seed)
    options = options.quick if quick else options
    bench("denoising", lambda progress: run(options, device, progress), json, plot)
