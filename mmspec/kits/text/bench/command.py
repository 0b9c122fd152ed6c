"""`mmspec bench` commands of language models."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.bench.command import Json, Methods, Plot, Quick, bench, check_output_folders
from mmspec.bench.methods import chosen_methods, counted_or_read
from mmspec.cli.arguments import Device
from mmspec.kits.text.bench.defaults import BATCH, NEW, PROMPTS, REPEATS

if TYPE_CHECKING:
    from mmspec.kits.text.bench.settings import Subject


def bench_command(
    subject: "Callable[[str], Subject]", target: str, summary: str, measure: Callable[..., Any] | None = None
) -> Callable[..., None]:
    """The command that benchmarks a language model; `subject` is called behind the check of the output folders.
    `measure` stands for `mmspec.kits.text.bench.run.bench`.
    """

    def command(
        method: Methods = None,
        *,
        json: Json = None,
        plot: Plot = None,
        device: Device = "cpu",
        repeats: Annotated[
            int, typer.Option(min=1, max=1000, help="Counted repeats; the raw seconds of each are kept.")
        ] = REPEATS,
        prompts: Annotated[
            str,
            typer.Option(help='How many held-out prompts of each kind; or a file, {"prompt": "…"} a line, or turns.'),
        ] = str(PROMPTS),
        new_tokens: Annotated[int, typer.Option(min=8, max=512, help="Tokens of each output.")] = NEW,
        batch: Annotated[int, typer.Option(min=0, max=10, help="Rows of the batch; 0 leaves batches out.")] = BATCH,
        seed: Annotated[int, typer.Option(help="Of torch's generator, before every call.")] = 0,
        quick: Quick = False,
        model: Annotated[str, typer.Option(help="A model of this kind: a folder, a hub name, mmspec/….")] = target,
        drafter: Annotated[str | None, typer.Option(help="A smaller model; default: the shipped one.")] = None,
        gguf: Annotated[
            str | None, typer.Option(help="GGUF files of the model, joined by commas: llama.cpp runs beside.")
        ] = None,
    ) -> None:
        check_output_folders(json, plot)
        count, own = counted_or_read(prompts, chats=True)
        from mmspec.kits.text.bench import run
        from mmspec.kits.text.bench.settings import BenchOptions

        chosen = subject(model) if drafter is None else subject(model).drafted_by(drafter)
        options = BenchOptions(
            prompts=count,
            new=new_tokens,
            repeats=repeats,
            batch=batch,
            seed=seed,
            files=tuple(map(Path, gguf.split(","))) if gguf else (),
        )
        options = options.quick if quick else options
        methods, measured = chosen_methods(method, chosen.methods), measure or run.bench
        bench(chosen.kind, lambda progress: measured(chosen, methods, options, device, progress, own), json, plot)

    command.__doc__ = summary
    return command
