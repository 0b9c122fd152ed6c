"""`mmspec bench text`."""

from typing import TYPE_CHECKING

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


def bench_text(
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
) -> None:
    """Compare methods, interleaved, with plain decoding and with transformers' own ways, on held-out code and prose."""
    sizes = dict(prompts=prompts, new=new_tokens, repeats=repeats, batch=batch, seed=seed)
    run_bench(_subject, method, json, plot, device, quick, **sizes)


def _subject() -> "Subject":
    from mmspec.kits.text.bench.settings import METHODS, Subject

    return Subject("text", "mmspec/text-14m", METHODS)
