"""`python -m tools.bench one-shape …`: by kind of model; exit code 1 if an output under one shape differs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm
from transformers.utils import logging

import mmspec_text.bench
from mmspec.cli.places import refuse_unwritable
from mmspec.kits.text.bench.defaults import NEW
from mmspec.kits.text.bench.settings import DRAFTER, METHODS
from mmspec.registry.suggest import unknown
from mmspec.report import terminal
from mmspec.report.table import show_view
from mmspec_ssm.bench import LEVELS, SAME
from tools.bench.image.run import SETTINGS, SWEPT
from tools.bench.one_shape import clips as frames_of_codes
from tools.bench.one_shape import pictures as codes
from tools.bench.one_shape import texts as tokens
from tools.bench.one_shape.cells import Cell, Subject, measure
from tools.bench.video.settings import MODELS
from tools.cards.equality import view

Json = Annotated[
    Path | None,
    typer.Option(help="Where to keep the result, a line of JSON a cell; cells that are in it are not run again."),
]
Dtypes = Annotated[str, typer.Option(help="Dtypes of the weights, joined by commas.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
KNOWN = ("bfloat16", "float16", "float32")
HALVES = "bfloat16,float16"
SSM: Mapping[str, Mapping[str, Any]] = {
    "stree": {"drafter": DRAFTER, "k": LEVELS, "nodes": SAME},
    **{name: METHODS[name] for name in ("prompt-lookup", "auto")},
}
"""The methods that are compared on state-space models; STree's tree has one size on every machine."""
WINDOWS = (8, 16, 32)
"""The windows of codes at which pictures are compared."""


def text_methods(model: str) -> dict[str, Mapping[str, Any]]:
    """The methods that are compared on a language model: every one whose output is plain's."""
    methods = mmspec_text.bench.methods_of(model)
    return {name: how for name, how in methods.items() if name != "rsd" and "compile" not in how}


def language_command(methods: Callable[[str], Mapping[str, Mapping[str, Any]]], target: str) -> Callable[..., None]:
    """The command for a kind of language models.

    Args:
        methods: Returns the methods with their options for a model's name.
        target: The default model.
    """

    def command(
        json: Json = None,
        dtype: Dtypes = HALVES,
        texts: Annotated[int, typer.Option(min=1, max=10_000, help="Texts of a cell under one shape.")] = 17,
        any_shape: Annotated[int, typer.Option(min=0, max=10_000, help="Texts of a cell under shape any.")] = 6,
        new_tokens: Annotated[int, typer.Option(min=1, max=512, help="Tokens of each text.")] = NEW,
        device: Device = "cpu",
        model: Annotated[str, typer.Option(help="A model of this kind with the shipped tokenizer.")] = target,
    ) -> None:
        """Count texts that equal plain decoding to the bit: every method, alone and in ragged batches, sampled."""
        cells = tokens.cells(methods(model), _dtypes(dtype, json), texts, any_shape)
        run(model, json, tokens.Texts(model, device, new_tokens), cells)

    return command


def image(
    json: Json = None,
    dtype: Dtypes = HALVES,
    pictures: Annotated[int, typer.Option(min=1, max=1000, help="Pictures of a window.")] = 32,
    batch: Annotated[int, typer.Option(min=1, max=32, help="Pictures drawn together.")] = 4,
    device: Device = "cpu",
    model: Annotated[str, typer.Option(help="A shipped name, or the folder of a pipeline.")] = "mmspec/emoji",
) -> None:
    """Count pictures that equal plain decoding to the bit: gs-sjd at several windows, sampled with guidance."""
    setting = SETTINGS[0]
    cells = codes.cells(SWEPT, WINDOWS, setting, _dtypes(dtype, json), pictures, batch)
    run(model, json, codes.Pictures(model, setting, device), cells)


def video(
    json: Json = None,
    dtype: Dtypes = HALVES,
    clips: Annotated[int, typer.Option(min=1, max=1000, help="Clips of a window.")] = 8,
    frames: Annotated[int, typer.Option(min=1, max=100, help="Most new frames of a clip.")] = 8,
    device: Device = "cpu",
    model: Annotated[str, typer.Option(help="A shipped name, or the folder of a pipeline of codes.")] = MODELS[1],
) -> None:
    """Count clips of codes that equal plain decoding to the bit: frame-gs-sjd at several windows, sampled."""
    cells = frames_of_codes.cells(_dtypes(dtype, json), clips)
    run(model, json, frames_of_codes.Clips(model, frames, device), cells)


def run(name: str, json: Path | None, subject: Subject, cells: Sequence[Cell]) -> None:
    """Run all cells and show the table.

    Args:
        name: Name on the progress bar.
        json: Where the result is kept, or None.
        subject: The model.
        cells: What is compared.

    Raises:
        typer.Exit: An output under one shape differs.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tqdm(total=len(cells), desc=f"one-shape {name}", unit="cell", leave=False) as bar:
        found = measure(subject, cells, json, lambda: bar.update() and None)
    show_view(view(found), terminal.terminal())
    if any(cell.apart for cell in found if cell.shape == "one"):
        raise typer.Exit(1)


def _dtypes(joined: str, json: Path | None) -> list[str]:
    """The names of dtypes.

    Raises:
        ValueError: One is unknown, or the result cannot be written into the file `json`.
    """
    wanted = joined.split(",")
    for dtype in wanted:
        if dtype not in KNOWN:
            raise ValueError(unknown("dtype", dtype, KNOWN))
    refuse_unwritable(json)
    return wanted


COMMANDS: Mapping[str, Callable[..., None]] = {
    "text": language_command(text_methods, "mmspec/text-14m"),
    "ssm": language_command(lambda model: SSM, "mmspec/ssm-5m"),
    "image": image,
    "video": video,
}
