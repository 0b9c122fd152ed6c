"""The common part of all benchmark commands: folders are checked first; then a progress bar, tables, the files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.bench.methods import chosen_methods, counted_or_read
from mmspec.cli.arguments import Device
from mmspec.cli.places import refuse_unwritable

if TYPE_CHECKING:
    from mmspec.bench.pipelines import Modality
    from mmspec.bench.race import Plan
    from mmspec.report.result import Result

Progress = Callable[["Plan"], Callable[[], None]]
"""Takes the plan of a benchmark, shows it, and returns a function to be called after each measured call."""
Methods = Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all that fit.")]
Json = Annotated[Path | None, typer.Option(help="File for the result, raw repeats included.")]
Plot = Annotated[Path | None, typer.Option(help="File for a plot (.png, .svg); needs the extra `bench`.")]
Quick = Annotated[bool, typer.Option("--quick", help="All methods in about two minutes: less of all.")]


def check_output_folders(json: Path | None, plot: Path | None) -> None:
    """Refuse output files that could only fail after the measurement."""
    refuse_unwritable(json, plot)
    if plot is not None:
        from mmspec.report.plot import refuse

        refuse(plot)


def bench(name: str, run: Callable[[Progress], "Result"], json: Path | None, plot: Path | None) -> None:
    """Say how long the benchmark takes, run it (`run`, by the progress bar), show its tables and write its files."""
    from tqdm import tqdm
    from transformers.utils import logging

    from mmspec.report.table import show
    from mmspec.report.views import vs_best

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def progress(plan: "Plan") -> Callable[[], None]:
        typer.echo(f"bench {name}: {plan}", err=True)
        bar = tqdm(total=plan.calls, desc=f"bench {name}", unit="call", leave=False)
        return lambda: bar.update() and None

    result = run(progress)
    if json is not None:
        replace(result, vs_best=vs_best(result)).save(json)
    show(result)
    if plot is not None:
        from mmspec.report.plot import save

        save(result, plot)


def pipeline_command(
    modality: "Callable[[], Modality]", target: str, most: int, k: int | None, summary: str
) -> Callable[..., None]:
    """The command that benchmarks pipelines of a `modality`, which is called after the arguments were checked; `most`
    is the number of prompts of ours, `summary` the first line of the help.
    """

    def command(
        method: Methods = None,
        *,
        json: Json = None,
        plot: Plot = None,
        device: Device = "cpu",
        repeats: Annotated[int, typer.Option(min=1, max=1000, help="Counted repeats, each with seeds of its own.")] = 4,
        prompts: Annotated[
            str, typer.Option(help='How many prompts of ours, or a file of yours: {"prompt": "…"} a line.')
        ] = "4",
        window: Annotated[int | None, typer.Option(min=1, max=64, help="Units that methods draft per round.")] = k,
        seed: Annotated[int, typer.Option(help="Of the first piece; the others count up.")] = 0,
        model: Annotated[str, typer.Option(help="A shipped name, or the folder of a pipeline.")] = target,
        quick: Quick = False,
    ) -> None:
        check_output_folders(json, plot)
        count, own = counted_or_read(prompts, most)
        methods = chosen_methods(method)
        from diffusers.utils import logging

        from mmspec.bench.pipelines import Size, bench_pipeline

        logging.disable_progress_bar()  # of loading, which is short
        kind, size = modality(), Size(repeats, window, seed)
        size, given = size.shorter if quick else size, own or count
        bench(kind.kind, lambda shown: bench_pipeline(kind, model, methods, given, size, device, shown), json, plot)

    command.__doc__ = summary
    return command
