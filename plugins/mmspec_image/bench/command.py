"""`mmspec bench image`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mmspec_image.bench.defaults import BATCH, MODEL, PROMPTS, REPEATS, WINDOW


def bench_image(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Counted repeats, each of captions of its own.")] = REPEATS,
    prompts: Annotated[int, typer.Option(min=1, max=32, help="Captions of a repeat; one picture each.")] = PROMPTS,
    window: Annotated[int, typer.Option(min=1, max=64, help="Codes that all methods draft per round.")] = WINDOW,
    batch: Annotated[int, typer.Option(min=0, max=32, help="Rows of the batch; 0 leaves batches out.")] = BATCH,
    seed: Annotated[int, typer.Option(help="Of the first picture; the others count up.")] = 0,
    model: Annotated[str, typer.Option(help="A shipped name, or the folder of a pipeline for captions.")] = MODEL,
) -> None:
    """Compare methods, interleaved, with plain decoding: how fast pictures are drawn, and what they are like."""
    from diffusers.utils import logging as parts
    from tqdm import tqdm
    from transformers.utils import logging

    from mmspec.report.table import show
    from mmspec_image.bench.run import bench_image as run
    from mmspec_image.bench.settings import BenchOptions

    for path in (json, plot):
        if path is not None and not path.resolve().parent.is_dir():
            raise ValueError(f"there is no folder {path.resolve().parent} to write {path.name} into")
    if prompts * repeats < 2:
        raise ValueError("one picture has no distance to others; ask for two repeats or two prompts at least")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parts.disable_progress_bar()
    options = BenchOptions(prompts=prompts, repeats=repeats, window=window, batch=batch, seed=seed)

    def progress(calls: int) -> Callable[[], None]:
        bar = tqdm(total=calls, desc="bench image", unit="call", leave=False)
        return lambda: bar.update() and None

    result = run(method.split(",") if method else None, options, device, progress, model)
    if json is not None:
        result.save(json)
    show(result)
    if plot is not None:
        from mmspec.report.plot import save

        save(result, plot)
