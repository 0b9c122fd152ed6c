"""`mmspec bench image`."""

from typing import Annotated, Any

import typer

from mmspec.bench import one_shape_command
from mmspec.bench.command import Quick
from mmspec.kits.pictures.bench.command import Batch, Device, Json, Model, Plot, Prompts, Repeats, Seed, bench_model
from mmspec.kits.pictures.bench.options import BATCH, PROMPTS, REPEATS, WINDOW, BenchOptions

MODEL = "mmspec/emoji"
PICTURES = 32
"""Pictures of a window in `one_shape_image`."""


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
    bench_model("image", "mmspec_image.bench.run:CodeSubject", method, options, quick, device, model, json, plot)


def one_shape_image(
    json: one_shape_command.Json = None,
    dtype: one_shape_command.Dtypes = one_shape_command.HALVES,
    pictures: Annotated[int, typer.Option(min=1, max=1000, help="Pictures of a window.")] = PICTURES,
    batch: Annotated[int, typer.Option(min=1, max=32, help="Pictures drawn together.")] = BATCH,
    device: Device = "cpu",
    model: Model = MODEL,
) -> None:
    """Count pictures that equal plain decoding to the bit: gs-sjd at several windows, sampled with guidance."""

    def prepare(dtypes: list[str]) -> Any:
        from mmspec.kits.pictures.bench.one_shape import Pictures, cells
        from mmspec_image.bench.run import ONE_SHAPE_WINDOWS, SETTINGS, SWEPT

        setting = SETTINGS[0]
        return Pictures(model, setting, device), cells(SWEPT, ONE_SHAPE_WINDOWS, setting, dtypes, pictures, batch)

    one_shape_command.run(model, json, dtype, prepare)
