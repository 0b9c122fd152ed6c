"""`mmspec new`: a plugin to begin with, which works before a line of it was changed."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec import authoring
from mmspec.cli.places import refuse_folders
from mmspec.registry import installed


def new(
    name: Annotated[str, typer.Argument(help="The plugin's name, without mmspec-.")],
    kind: Annotated[str, typer.Option(help="What it begins with: drafter, rule, target, policy, picture.")] = "drafter",
    out: Annotated[Path, typer.Option(help="Folder that receives its folder.", file_okay=False)] = Path(),
) -> None:
    """Write a plugin: pyproject, module, test, README, workflow. It passes `mmspec check`, or its tests, at once."""
    refuse_folders(out)
    folder = authoring.write(installed(), name, kind, out)
    module = min(folder.glob("*.py"))
    plugin = module.stem.removeprefix("mmspec_")
    typer.echo(f"{folder}: {', '.join(str(f.relative_to(folder)) for f in sorted(folder.rglob('*')) if f.is_file())}")
    if kind == "picture":
        typer.echo(f"Next: pip install -e '{folder}[test]' && pytest {folder}")
        return
    typer.echo(f"Next: mmspec --plugin {module} check {plugin}")
    typer.echo(f"Or:   pip install -e '{folder}[test]' && mmspec check {plugin}")
    typer.echo('`mmspec check` needs scipy, which comes with that, and with pip install "mmspec[check]".')
