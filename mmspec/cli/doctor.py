"""`mmspec doctor`: versions, device, plugins and shipped models, and what is wrong with them."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from mmspec import shipped
from mmspec.cli.arguments import Device, Drafter, Dtype
from mmspec.registry import installed

PACKAGES = (
    "mmspec", "mmspec-models", "torch", "transformers", "diffusers", "pluggy", "safetensors", "pydantic", "typer",
)  # fmt: skip


def doctor(
    model: Annotated[
        str | None, typer.Argument(help="A language model to examine: mmspec/…, a folder, a hub name.")
    ] = None,
    *,
    drafter: Drafter = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Check this installation; or a model, and a draft head for it, at length.

    Of a model, trees, long texts (at every length that a setting of its config names) and padded rows are compared
    with its own passes; a head drafts behind a text that the model writes. The page "What is checked" says what each
    can see.

    Exit code 1: a plugin or a shipped model is broken, or a comparison refuses the model.
    """
    problems: list[str] = []
    for name, line in _installation(problems) if model is None else _model(model, drafter, device, dtype, problems):
        typer.echo(f"{name:14}" + line.replace("\n", "\n" + 14 * " "))
    for problem in problems:
        typer.echo(f"{'PROBLEM':14}{problem}")
    typer.echo("all well" if not problems else f"problems: {len(problems)}")
    raise typer.Exit(1 if problems else 0)


def _installation(problems: list[str]) -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        yield name, _version(name)
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield "device", _device()
    yield "kernels", _kernels()
    problems += [f"plugin {p.name}: {p.error}" for p in installed().plugins() if p.error]
    yield "plugins", ", ".join(p.name for p in installed().plugins() if p.status == "ok")
    for line, problem in _models():
        yield "asset", line
        problems += [f"asset {line}: {problem}"] if problem else []


def _model(
    name: str, drafter: str | None, device: str, dtype: str | None, problems: list[str]
) -> Iterator[tuple[str, str]]:
    from transformers.utils import logging

    from mmspec.api.examination import comparisons
    from mmspec.hosts.devices import dtype_of
    from mmspec.hosts.loading import load_model

    logging.disable_progress_bar()
    model = load_model(name, device, dtype_of(dtype or "float32"))
    yield "model", f"{type(model).__name__}, {model.num_parameters() / 1e6:.1f} M parameters, {model.dtype}"
    for what, compare in comparisons(model, drafter):
        try:
            yield what, compare()
        except ValueError as error:
            problems.append(str(error))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _device() -> str:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{', '.join(names) or 'cpu'}; {torch.get_num_threads()} torch threads on {os.cpu_count()} cores"


def _kernels() -> str:
    """The code that runs the rules: Triton's kernels, or why they do not run."""
    import torch

    from mmspec.core.kernels import why_not

    return why_not("cuda" if torch.cuda.is_available() else "cpu") or "Triton's, where they cover a case"


def _models() -> Iterator[tuple[str, str | None]]:
    """Each shipped model with its problem, if it has one; models that are not installed are no problem."""
    if not shipped.present():
        yield shipped.MISSING, None
    for name, path in shipped.assets().items():
        weights = sorted(path.rglob("*.safetensors"))
        problems = [problem for file in weights if (problem := _damage(file))]
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        yield f"{name}, {size / 1e6:.1f} MB", "; ".join(problems) or (None if weights else "no weights")


def _damage(file: Path) -> str | None:
    """The damage of a file of weights: its header is read, and its length compared with the header; or None."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        return f"{file.name} is damaged: {error}"
    return None
