"""`mmspec bench text`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mmspec_text.bench.defaults import BATCH, NEW, PROMPTS, REPEATS


def bench_text(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Counted repeats; the raw seconds of each are kept.")] = REPEATS,
    prompts: Annotated[int, typer.Option(min=1, max=10, help="Prompts of each kind of text.")] = PROMPTS,
    new_tokens: Annotated[int, typer.Option(min=8, max=512, help="Tokens of each output.")] = NEW,
    batch: Annotated[int, typer.Option(min=0, max=10, help="Rows of the batch; 0 leaves batches out.")] = BATCH,
    seed: Annotated[int, typer.Option(help="Of torch's generator, before every call.")] = 0,
) -> None:
    """Compare methods, interleaved, with plain decoding and with transformers' own ways, on held-out code and prose."""
    from tqdm import tqdm
    from transformers.utils import logging

    from mmspec.report.table import show
    from mmspec_text.bench.run import bench_text as run
    from mmspec_text.bench.settings import BenchOptions

    for path in (json, plot):
        if path is not None and not path.resolve().parent.is_dir():
            raise ValueError(f"there is no folder {path.resolve().parent} to write {path.name} into")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options = BenchOptions(prompts=prompts, new=new_tokens, repeats=repeats, batch=batch, seed=seed)

    def progress(calls: int) -> Callable[[], None]:
        bar = tqdm(total=calls, desc="bench text", unit="call", leave=False)
        return lambda: bar.update() and None

    result = run(method.split(",") if method else None, options, device, progress)
    if json is not None:
        result.save(json)
    show(result)
    if plot is not None:
        from mmspec.report.plot import save

        save(result, plot)
