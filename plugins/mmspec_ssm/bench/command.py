"""`mmspec bench ssm`."""

from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.bench.command import Quick
from mmspec.kits.text.bench.command import (
    Batch,
    Device,
    Json,
    Method,
    NewTokens,
    Plot,
    Prompts,
    Repeats,
    Seed,
    run_bench,
)
from mmspec.kits.text.bench.defaults import BATCH, NEW, PROMPTS, REPEATS

if TYPE_CHECKING:
    from mmspec.kits.text.bench.settings import Subject


def bench_ssm(
    method: Method = None,
    json: Json = None,
    plot: Plot = None,
    device: Device = "cpu",
    repeats: Repeats = REPEATS,
    prompts: Prompts = PROMPTS,
    new_tokens: NewTokens = NEW,
    batch: Batch = BATCH,
    seed: Seed = 0,
    quick: Quick = False,
    model: Annotated[
        str, typer.Option(help="A model with recurrent layers and the shipped tokenizer.")
    ] = "mmspec/ssm-5m",
) -> None:
    """Compare methods, interleaved, with plain decoding and transformers' own; what rounds over trees cost."""
    sizes = dict(prompts=prompts, new=new_tokens, repeats=repeats, batch=batch, seed=seed)
    run_bench(lambda: _subject(model), method, json, plot, device, quick, **sizes)


def _subject(model: str) -> "Subject":
    from mmspec.kits.text.bench.settings import Subject
    from mmspec_ssm.bench.rounds import rounds
    from mmspec_ssm.bench.settings import METHODS

    return Subject("ssm", model, METHODS, by_nodes=rounds)
