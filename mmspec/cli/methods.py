"""`mmspec methods`: what can be asked for, from manifests alone; `--for` a model: what fits it (`fitting.py`)."""

import json as jsonlib
from typing import Annotated, Any

import typer

from mmspec.registry import Component, Pairing, Registry, installed, pair


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method with its options (imports it).")] = None,
    model: Annotated[
        str | None, typer.Option("--for", help="What fits a model (shipped name, folder, hub name), and why not.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List the methods: what each promises, what it needs, who brings it."""
    if model is not None:
        if name is not None:
            raise ValueError("give a method to read about, or --for a model, not both")
        from mmspec.cli import fitting

        fitting.show(model, json)
        return
    registry = installed()
    chosen = [registry.get("method", name)] if name else registry.components("method")
    rows = [_row(registry, method) for method in sorted(chosen, key=lambda m: (m.name, m.owner))]
    if json:
        typer.echo(jsonlib.dumps(rows, indent=2))
        return
    _table(rows)
    if name and "error" not in rows[0]:
        _options(pair(registry, chosen[0]))


def _row(registry: Registry, method: Component) -> dict[str, Any]:
    row = {"name": method.name, "owner": method.owner, "summary": method.summary, "paper": method.paper}
    try:
        parts = pair(registry, method)
    except ValueError as error:
        return row | {"exactness": method.exactness, "needs": [], "error": str(error)}
    return row | {
        "exactness": parts.exactness,
        "drafter": parts.drafter.qualified if parts.drafter else None,
        "rule": parts.rule.qualified,
        # Without drafts and without a name, the rule is one that the target admits.
        "needs": sorted(parts.needs if parts.drafter or method.rule else method.needs),
    }


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "exactness", "needs", "summary", "from", box=None, pad_edge=False)
    names = [row["name"] for row in rows]
    for row in rows:
        name = row["name"] if names.count(row["name"]) == 1 else f"{row['owner']}:{row['name']}"
        table.add_row(name, row["exactness"], " ".join(row["needs"]), row.get("error", row["summary"]), row["owner"])
    Console().print(table)


def _options(parts: Pairing) -> None:
    from rich.console import Console
    from rich.table import Table

    from mmspec.registry.options import explain

    table = Table("option", "allowed", "default", "help", box=None, pad_edge=False)
    for part in (parts.drafter, parts.rule):
        options = part.load_options() if part else None
        for line in explain(options) if options else ():
            table.add_row(line.name, line.allowed, str(parts.method.defaults.get(line.name, line.default)), line.help)
    if table.row_count:
        Console().print("\n", table, sep="")
