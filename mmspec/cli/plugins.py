"""`mmspec plugins`: who is here, what each brings, and why one is not loaded."""

import dataclasses
import json as jsonlib
from typing import Annotated

import typer

from mmspec.registry import Plugin, installed
from mmspec.report.terminal import table, terminal

SLOW = 2.0  # seconds of loading from which on a plugin is said to be slow


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
    rows = [(plugin.name, _source(plugin), plugin.status, plugin.error or _summary(plugin)) for plugin in found]
    table(terminal(), ("plugin", "distribution", "status", "components"), rows, whole={"plugin", "status"})


def _source(plugin: Plugin) -> str:
    return f"{plugin.distribution} {plugin.version}" if plugin.distribution else "registered here"


def _summary(plugin: Plugin) -> str:
    kinds = dict.fromkeys(c.kind for c in plugin.components)
    lines = [f"{kind}: {', '.join(c.name for c in plugin.components if c.kind == kind)}" for kind in kinds]
    slow = [f"it takes {plugin.seconds:.1f} s to load, whatever mmspec is asked"] if plugin.seconds > SLOW else []
    return "\n".join([*(lines or ["nothing yet"]), *slow])
