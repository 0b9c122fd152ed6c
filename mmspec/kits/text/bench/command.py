"""What `mmspec bench` commands of language models share: their options, and a run of the benchmark."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.bench.command import bench, check_output_folders
from mmspec.bench.methods import told

if TYPE_CHECKING:
    from mmspec.kits.text.bench.settings import Subject

Method = Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")]
Json = Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")]
Plot = Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Repeats = Annotated[int, typer.Option(min=1, max=1000, help="Counted repeats; the raw seconds of each are kept.")]
Prompts = Annotated[int, typer.Option(min=1, max=10, help="Prompts of each kind of text.")]
NewTokens = Annotated[int, typer.Option(min=8, max=512, help="Tokens of each output.")]
Batch = Annotated[int, typer.Option(min=0, max=10, help="Rows of the batch; 0 leaves batches out.")]
Seed = Annotated[int, typer.Option(help="Of torch's generator, before every call.")]


def run_bench(
    subject: "Callable[[], Subject]",
    method: str | None,
    json: Path | None,
    plot: Path | None,
    device: str,
    quick: bool,
    **sizes: Any,
) -> None:
    """Run the benchmark of a language model.

    Args:
        subject: Returns what is benchmarked; called after the output folders were checked.
        method: Methods, joined by commas; None for all of the subject.
        json: Where to write the result, or None.
        plot: Where to draw it, or None.
        device: The device of the models.
        quick: Whether to run the short form.
        **sizes: Fields of `BenchOptions`.
    """
    check_output_folders(json, plot)
    from mmspec.kits.text.bench.run import bench as run
    from mmspec.kits.text.bench.settings import BenchOptions

    chosen, options = subject(), BenchOptions(**sizes)
    methods = told(method, chosen.methods)
    options = options.quick if quick else options
    bench(chosen.kind, lambda progress: run(chosen, methods, options, device, progress), json, plot)
