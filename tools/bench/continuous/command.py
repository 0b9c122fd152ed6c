"""`python -m tools.bench continuous`."""

from typing import Annotated

import typer

from mmspec.bench.command import Quick
from tools.bench.pictures import command as kit
from tools.bench.pictures.options import BATCH, PROMPTS, REPEATS, BenchOptions

MODEL = "mmspec/emoji-continuous"
WINDOW = 16


def bench_continuous(
    method: Annotated[
        str | None, typer.Option(help="Methods, joined by commas; default: all without a drafter.")
    ] = None,
    json: kit.Json = None,
    plot: kit.Plot = None,
    device: kit.Device = "cpu",
    repeats: kit.Repeats = REPEATS,
    prompts: kit.Prompts = PROMPTS,
    window: Annotated[int, typer.Option(min=1, max=64, help="Tokens that all methods draft per round.")] = WINDOW,
    batch: kit.Batch = BATCH,
    seed: kit.Seed = 0,
    model: kit.Model = MODEL,
    quick: Quick = False,
) -> None:
    """Compare methods and honest baselines, interleaved, with plain decoding; the head's time stands apart."""
    options = BenchOptions(prompts=prompts, repeats=repeats, window=window, batch=batch, seed=seed)
    subject = "tools.bench.continuous.run:TokenSubject"
    kit.bench_model("continuous", subject, method, options, quick, device, model, json, plot)
