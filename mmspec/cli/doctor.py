"""`mmspec doctor`: versions, device, plugins and shipped models, and what is wrong with them."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from mmspec import shipped
from mmspec.registry import installed

PACKAGES = (
    "mmspec", "mmspec-models", "torch", "transformers", "diffusers", "pluggy", "safetensors", "pydantic", "typer",
)  # fmt: skip


def doctor() -> None:
    """Check this installation; exit code 1 if a plugin or a shipped model is broken."""
    for name in PACKAGES:
        typer.echo(f"{name:14}{_version(name)}")
    typer.echo(f"{'python':14}{platform.python_version()} on {platform.platform()}")
    typer.echo(f"{'device':14}{_device()}")
    typer.echo(f"{'kernels':14}{_kernels()}")
    problems = [f"plugin {p.name}: {p.error}" for p in installed().plugins() if p.error]
    typer.echo(f"{'plugins':14}{', '.join(p.name for p in installed().plugins() if p.status == 'ok')}")
    for line, problem in _models():
        typer.echo(f"{'asset':14}{line}")
        problems += [f"asset {line}: {problem}"] if problem else []
    for problem in problems:
        typer.echo(f"{'PROBLEM':14}{problem}")
    typer.echo("all well" if not problems else f"problems: {len(problems)}")
    raise typer.Exit(1 if problems else 0)


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
    """What runs the rules: Triton's kernels, or why they do not run."""
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
    """What is wrong with a file of weights: its header is read, and its length compared with the header; or None."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        return f"{file.name} is damaged: {error}"
    return None
