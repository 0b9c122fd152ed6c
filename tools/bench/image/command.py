"""`python -m tools.bench image`."""

from typing import Annotated

import typer

from mmspec.bench.command import Quick
from tools.bench.pictures.command import Batch, Device, Json, Model, Plot, Prompts, Repeats, Seed, bench_model
from tools.bench.pictures.options import BATCH, PROMPTS, REPEATS, WINDOW, BenchOptions

MODEL = "mmspec/emoji"


def bench_image(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")] = None,
    json: Json = None,
    plot: Plot = None,
    device: Device = "cpu",
    repeats: Repeats = REPEATS,
    prompts: Prompts = PROMPTS,
    window: Annotated[int, typer.Option(min=1, max=64, help="Codes that all methods draft per round.")] = WINDOW,
    batch: Batch = BATCH,
    seed: Seed = 0,
    model: Model = MODEL,
    quick: Quick = False,
) -> None:
    """Compare methods, interleaved, with plain decoding: how fast pictures are drawn, and what they are like."""
    options = BenchOptions(prompts=prompts, repeats=repeats, window=window, batch=batch, seed=seed)
    bench_model("image", "tools.bench.image.run:CodeSubject", method, options, quick, device, model, json, plot)
