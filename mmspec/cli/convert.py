"""`mmspec convert`: of a published model's files a folder that `mmspec.Pipeline.from_pretrained` loads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from mmspec.cli.places import refuse_folders
from mmspec.registry import installed
from mmspec.registry.options import explain, parse
from mmspec.registry.suggest import unknown
from mmspec.report.terminal import table, terminal


class Layout(Protocol):
    """The answer of plugins to the hook `mmspec_layouts`, as the command line uses it."""

    name: str
    summary: str
    options: type
    source: str
    licence: str

    def convert(self, files: Sequence[Path], folder: Path, values: Mapping[str, Any]) -> None:
        """Write the pipeline of published files into a folder."""


def convert(
    layout: Annotated[str | None, typer.Argument(help="Whose files they are; without it, list what there is.")] = None,
    files: Annotated[
        list[Path] | None, typer.Argument(help="One file of every part, .safetensors or .pt, or its folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write; a new one.")] = None,
    opt: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="What the weights do not tell; repeatable.")
    ] = None,
) -> None:
    """Convert a published model's files. No code in them is run, and they are compared with the model by their headers
    before any weights are read.
    """
    known = layouts()
    if layout is None:
        rows = [(each.name, each.summary, each.licence, each.source, _options(each)) for each in known.values()]
        table(terminal(), ("layout", "model", "licence", "files", "options"), rows, whole={"layout"})
        return
    if layout not in known:
        from mmspec.api.stored import advice_on

        raise ValueError(advice_on(layout) or unknown("layout", layout, known))
    if not files or out is None:
        raise ValueError(f"say which files, and where to: mmspec convert {layout} FILE FILE -o FOLDER")
    refuse_folders(out)
    known[layout].convert(files, out, parse(opt or ()))
    typer.echo(f'{out}: mmspec.Pipeline.from_pretrained("{out}") loads it')


def layouts() -> dict[str, Layout]:
    """The layouts of all installed plugins, by name."""
    registry = installed()
    found: dict[str, Layout] = {}
    for plugin in registry.plugins():
        for described in registry.ask(plugin.name, "mmspec_layouts") or ():
            found |= {each.name: each for each in described}
    return found


def _options(layout: Layout) -> str:
    return ", ".join(option.name + ("" if option.default else " (required)") for option in explain(layout.options))
