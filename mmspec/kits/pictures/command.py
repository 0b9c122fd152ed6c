"""What commands that draw pictures share: files written whole or not at all, several pictures on a sheet, CTRL-C.

Nothing heavy is imported before a command runs.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.files import save_whole


def pipeline(model: str, device: str, /, **how: Any) -> Any:
    """A pipeline that draws pictures; arguments as in `mmspec.Pipeline.from_pretrained`.

    Raises:
        ValueError: There is no such model, it draws no pictures, or an argument is wrong.
    """
    from diffusers.utils import logging

    import mmspec

    logging.disable_progress_bar()  # of loading, which takes a moment only
    pipe = mmspec.Pipeline.from_pretrained(model, device=device, **how)
    if not hasattr(pipe, "decode_units"):
        raise ValueError(f"{model} draws no pictures: it is a {type(pipe).__name__}")
    return pipe


def list_words(model: str) -> None:
    """Print the words that a model's captions were made of.

    Raises:
        ValueError: There is no such model, or it reads no captions of ours.
    """
    from mmspec.hosts.loading import load_tokenizer, locate_pipeline
    from mmspec.kits.pictures.words import words_of

    folder = locate_pipeline(model)
    if folder is None or not (folder / "tokenizer").is_dir():
        raise ValueError(f"{model} is no folder of a pipeline with a tokenizer of captions")
    typer.echo("\n".join(words_of(load_tokenizer(str(folder / "tokenizer")))))


def draw(pipe: Any, call: Mapping[str, Any], out: Path, trace: Path | None, unit: str) -> None:
    """Draw into a file, say what it took; CTRL-C keeps what there is.

    Args:
        pipe: The pipeline.
        call: Its arguments.
        out: The picture, or a sheet of them.
        trace: The same again, cells in the colours of the rounds that emitted them.
        unit: What a unit is called.

    Raises:
        ValueError: An argument of the call is wrong.
        typer.Exit: The call was stopped.
    """
    with ctrl_c_stops(pipe):
        made = pipe(**call)
    save_whole(out, sheet(made.images).save)
    if trace is not None:
        from mmspec.kits.pictures.trace import traced

        save_whole(trace, sheet([traced(*both) for both in zip(made.images, made.rounds, strict=True)]).save)
    typer.echo("\n".join(line for line in (pipe.decoder().why, str(made.report), str(out)) if line), err=True)
    if pipe.interrupt:
        drawn = f"{made.report.emitted} of {made.rounds.numel()} {unit}s"
        typer.echo(f"(stopped; {out} is what there is: {drawn}, the rest repeats what stands above)", err=True)
        raise typer.Exit(INTERRUPTED)


@contextmanager
def ctrl_c_stops(pipe: Any) -> Iterator[None]:
    """Inside the block CTRL-C stops the pipeline's call after its round; the second one stops it at once."""

    def stop(*_: Any) -> None:
        pipe._interrupt = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def sheet(pictures: Sequence[Any]) -> Any:
    """One picture, or several side by side: as square as their number allows."""
    from diffusers.utils import make_image_grid

    rows = next(n for n in range(int(len(pictures) ** 0.5), 0, -1) if len(pictures) % n == 0)
    return make_image_grid(list(pictures), rows=rows, cols=len(pictures) // rows)


def refuse_format(file: Path) -> None:
    """Refuse a name that does not say a format of pictures.

    Raises:
        ValueError: It does not.
    """
    from PIL import Image

    Image.init()
    if Image.registered_extensions().get(file.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"{file.name} does not end in a format of pictures; .png, .jpg and .webp do")
