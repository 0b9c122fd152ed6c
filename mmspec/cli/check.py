"""`mmspec check`: does a component keep its promises? One line per promise, with the number that was measured.

`mmspec check --parity DIR`: do our models compute what the official implementations computed? One line per output.
"""

import json as jsonlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.registry import installed
from mmspec.report import terminal

if TYPE_CHECKING:
    from rich.text import Text

    from mmspec.testing.conformance.check import Outcome
    from mmspec.testing.parity import Agreement

COLOURS = {"pass": "green", "fail": "bold red", "xfail": "yellow", "skip": "dim"}
NEVER_FOLDED = {"check", "status", "architecture", "output"}  # columns that users copy: they are neither cut nor folded


def check(
    name: Annotated[
        str | None, typer.Argument(help="A plugin (all that it offers), or a component: name or plugin:name.")
    ] = None,
    parity: Annotated[
        Path | None,
        typer.Option("--parity", metavar="DIR", help="Compare models with the official outputs in a folder instead."),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Statistics on 400,000 rows: minutes, and a bias of 2 % shows.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Run the conformance kit; without a name, on every plugin. Exit code 1 if a promise is broken.

    A test of a distribution says the smallest bias that it sees in 95 of 100 runs: a total variation of the joint (χ²),
    a distance of distribution functions (KS), or a share of units too many where the draft's distribution is larger
    than the target's (lean). A smaller bias may pass; --thorough sees smaller ones. Needs scipy: mmspec[check].

    With --parity, run the models of every *.safetensors fixture in DIR. Exit code 1 if an output is off by more than
    1e-4 of the largest number, or an integer differs.
    """
    if parity is not None:
        if name is not None:
            raise typer.BadParameter(f"--parity runs every fixture of a folder; leave out {name!r}")
        raise typer.Exit(_parity(parity, json))
    from mmspec.testing.conformance.run import refuse_without_scipy

    refuse_without_scipy()
    began = time.perf_counter()
    outcomes = _outcomes(name, thorough)
    if json:
        typer.echo(jsonlib.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        _print(outcomes, time.perf_counter() - began)
    raise typer.Exit(1 if any(outcome.status == "fail" for outcome in outcomes) else 0)


def _outcomes(name: str | None, thorough: bool) -> "list[Outcome]":
    import torch
    from rich.console import Console

    from mmspec.testing.conformance.run import broken_plugins, checks_of

    torch.set_num_threads(1)  # the kit's models are so tiny that more threads are slower
    registry = installed()
    wanted = [name] if name is not None else [plugin.name for plugin in registry.plugins() if plugin.status == "ok"]
    outcomes = [] if name is not None else list(broken_plugins(registry))
    with Console(stderr=True).status("imports …") as status:
        for each in checks_of(wanted, registry=registry, thorough=thorough):
            status.update(f"{each.component.kind} {each.component.qualified}: {each.name}")
            outcomes.append(each.outcome())
    return outcomes


def _parity(folder: Path, json: bool) -> int:
    """Compare with every fixture of a folder; the exit code."""
    from mmspec.testing.parity import compare

    agreements = list(compare(folder))
    if json:
        typer.echo(jsonlib.dumps([{**asdict(each), "status": _status(each)} for each in agreements], indent=2))
    else:
        _print_parity(agreements)
    return 0 if all(each.holds for each in agreements) else 1


def _status(agreement: "Agreement") -> str:
    return "skip" if agreement.skipped else "pass" if agreement.holds else "fail"


def _print_parity(agreements: "Sequence[Agreement]") -> None:
    rows, before = [], None
    for each in agreements:
        architecture = each.architecture if each.architecture != before else ""
        number = "" if each.error is None else f"{each.error:.1e}"
        rows.append((architecture, each.output, _coloured(_status(each)), number, each.note))
        before = each.architecture
    console = terminal.terminal()
    terminal.table(console, ("architecture", "output", "status", "difference", "reason"), rows, whole=NEVER_FOLDED)
    fixtures, outputs = len({each.architecture for each in agreements}), sum(bool(each.output) for each in agreements)
    tally = _tally([_status(each) for each in agreements])
    terminal.line(console, f"fixtures: {fixtures}, outputs: {outputs}: {tally}")


def _coloured(status: str) -> "Text":
    return terminal.text(status, COLOURS[status])


def _tally(statuses: Sequence[str]) -> str:
    counts = Counter(statuses)
    return ", ".join(f"{counts[status]} {status}" for status in COLOURS if counts[status]) or "nothing to check"


def _print(outcomes: "Sequence[Outcome]", seconds: float) -> None:
    rows, before = [], None
    for outcome in outcomes:
        component = f"{outcome.kind} {outcome.component}"
        shown = component if component != before else ""
        rows.append((shown, outcome.check, _coloured(outcome.status), outcome.number, outcome.reason))
        before = component
    components = len({(outcome.kind, outcome.component) for outcome in outcomes})
    tally = _tally([outcome.status for outcome in outcomes])
    console = terminal.terminal()
    if outcomes:
        terminal.table(console, ("component", "check", "status", "number", "reason"), rows, whole=NEVER_FOLDED)
    terminal.line(console, f"components: {components}, checks: {len(outcomes)}: {tally} ({seconds:.0f} s)")
