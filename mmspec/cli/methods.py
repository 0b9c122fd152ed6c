"""`mmspec methods`: what can be asked for, from manifests alone; `--for` a model: what fits it (`fitting.py`)."""

import json as jsonlib
from collections import Counter
from typing import Annotated, Any

import typer

from mmspec.registry import AdapterSpec, MethodSpec, Pairing, Registry, installed, pair
from mmspec.registry.matching import named
from mmspec.report.terminal import table, terminal


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method with its options (imports it).")] = None,
    model: Annotated[
        str | None, typer.Option("--for", help="What fits a model (shipped name, folder, hub name), and why not.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="With --for: every method, and why others do not fit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List methods and adapters: what each promises, what it needs, who brings it."""
    if model is not None:
        if name is not None:
            raise ValueError("give a method to read about, or --for a model, not both")
        from mmspec.cli import fitting

        fitting.show(model, every, json)
        return
    registry = installed()
    adapters = [a for a in registry.components("adapter") if name in (None, a.name, a.qualified)]
    chosen = [
        *(registry.components("method") if name is None else [] if adapters else [named(registry, name)]),
        *adapters,
    ]
    rows = [_row(registry, method) for method in sorted(chosen, key=lambda m: (m.name, m.owner))]
    if json:
        typer.echo(jsonlib.dumps(rows, indent=2))
        return
    _table(rows)
    if name and rows[0]["paper"]:
        typer.echo(f"\nPaper: {rows[0]['paper']}")
    if name and not adapters and "error" not in rows[0]:
        _options(pair(registry, chosen[0]))


def _row(registry: Registry, method: MethodSpec | AdapterSpec) -> dict[str, Any]:
    row = {"name": method.name, "owner": method.owner, "summary": method.summary, "paper": method.paper}
    if isinstance(method, AdapterSpec):
        return row | {"exactness": method.exactness, "drafter": None, "rule": None, "needs": []}
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
        **({"wrt": parts.wrt} if parts.wrt else {}),
    }


def _table(rows: list[dict[str, Any]]) -> None:
    names = Counter(row["name"] for row in rows)
    shown = [
        (
            row["name"] if names[row["name"]] == 1 else f"{row['owner']}:{row['name']}",
            row["exactness"],
            " ".join(row["needs"]),
            row.get("error", row["summary"]) + (f" (exact for {row['wrt']})" if "wrt" in row else ""),
            row["owner"],
        )
        for row in rows
    ]
    table(terminal(), ("method", "exactness", "needs", "summary", "from"), shown, whole={"method"})


def _options(parts: Pairing) -> None:
    from mmspec.registry.options import OptionHelp, explain

    declared = [part.load_options() for part in (parts.drafter, parts.rule) if part]
    usual, elsewhere = parts.method.defaults, parts.method.on_accelerator

    def default(line: OptionHelp) -> str:
        value = str(usual.get(line.name, line.default))
        return f"{value}; on a GPU {elsewhere[line.name]}" if line.name in elsewhere else value

    rows = [
        (line.name, line.allowed, default(line), line.help)
        for options in declared
        if options
        for line in explain(options)
    ]
    if rows:
        console = terminal()
        console.print()
        table(console, ("option", "allowed", "default", "help"), rows, whole={"option"})
