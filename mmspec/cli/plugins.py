"""`mmspec plugins`: who is here, what each brings, and why one is not loaded."""

import dataclasses
import json as jsonlib
from typing import Annotated

import typer

from mmspec.registry import Plugin, installed


def plugins(json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """List the plugins: distribution, status, components, or the error."""
    found = installed().plugins()
    if json:
        typer.echo(jsonlib.dumps([_record(plugin) for plugin in found], indent=2))
    else:
        _table(found)


def _record(plugin: Plugin) -> dict[str, object]:
    record = {f.name: getattr(plugin, f.name) for f in dataclasses.fields(plugin)}
    components = [{"kind": c.kind, "name": c.name} for c in plugin.components]
    return record | {"status": plugin.status, "components": components}


def _table(found: tuple[Plugin, ...]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("plugin", "distribution", "status", "components", box=None, pad_edge=False)
    for plugin in found:
        source = f"{plugin.distribution} {plugin.version}" if plugin.distribution else "registered here"
        table.add_row(plugin.name, source, plugin.status, escape(plugin.error or _summary(plugin)))
    Console().print(table)


def _summary(plugin: Plugin) -> str:
    kinds = dict.fromkeys(c.kind for c in plugin.components)
    lists = (f"{kind}: {', '.join(c.name for c in plugin.components if c.kind == kind)}" for kind in kinds)
    return "\n".join(lists) or "nothing yet"
