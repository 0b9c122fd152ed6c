"""`mmspec check`: does a component keep its promises? One line a promise, with the number that was measured."""

import json as jsonlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.registry import installed

if TYPE_CHECKING:
    from mmspec.testing.conformance.outcome import Outcome

COLOURS = {"pass": "green", "fail": "bold red", "xfail": "yellow", "skip": "dim"}


def check(
    name: Annotated[
        str | None, typer.Argument(help="A plugin (all that it offers), or a component: name or plugin:name.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Run the conformance kit; without a name, on every plugin. Exit code 1 if a promise is broken."""
    began = time.perf_counter()
    outcomes = _outcomes(name)
    if json:
        typer.echo(jsonlib.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        _print(outcomes, time.perf_counter() - began)
    raise typer.Exit(1 if any(outcome.status == "fail" for outcome in outcomes) else 0)


def _outcomes(name: str | None) -> "list[Outcome]":
    import torch
    from rich.console import Console

    from mmspec.testing.conformance.run import broken_plugins, checks_for

    torch.set_num_threads(1)  # the kit's models are tiny: threads would only wait for each other
    registry = installed()
    wanted = [name] if name else [plugin.name for plugin in registry.plugins() if plugin.status == "ok"]
    outcomes = [] if name else list(broken_plugins(registry))
    with Console(stderr=True).status("imports …") as status:
        for each in checks_for(wanted, registry):
            status.update(f"{each.component.kind} {each.component.qualified}: {each.name}")
            outcomes.append(each.outcome())
    return outcomes


def _print(outcomes: "Sequence[Outcome]", seconds: float) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    from mmspec.report.table import wide_console

    names = [Column(name, no_wrap=True) for name in ("check", "status")]  # to be copied, never cut
    table = Table("component", *names, "number", "reason", box=None, pad_edge=False)
    before = None
    for outcome in outcomes:
        component = f"{outcome.kind} {outcome.component}"
        table.add_row(
            component if component != before else "",
            outcome.check,
            f"[{COLOURS[outcome.status]}]{outcome.status}[/]",
            escape(outcome.number),
            escape(outcome.reason),
        )
        before = component
    counts: Counter[str] = Counter(outcome.status for outcome in outcomes)
    components = len({(outcome.kind, outcome.component) for outcome in outcomes})
    said = ", ".join(f"{counts[status]} {status}" for status in COLOURS if counts[status]) or "nothing to check"
    console = wide_console()
    if outcomes:
        console.print(table)
    console.print(f"components: {components}, checks: {len(outcomes)}: {said} ({seconds:.0f} s)")
