"""`mmspec plan MODEL`: what a language model can reach on a GPU by formulas, and where speculation stops paying."""

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.registry.suggest import unknown

if TYPE_CHECKING:
    from mmspec_text.plan.work import Drafting, Forecast, Gpu

ROWS = "1,2,4,8,16,32,64,128,256"
PAYS = 1.05
"""The speed-up from which speculation is said to pay: what is less is lost outside of the passes."""


def plan(
    model: Annotated[
        str,
        typer.Argument(help="A language model: a folder with a config.json, a hub name; or a size, such as llama-8b."),
    ],
    *,
    gpu: Annotated[str, typer.Option(help="A GPU by name: l4, l40s, a100, h100, h200, b200.")] = "h100",
    rows: Annotated[str, typer.Option(help="Rows decoded together, joined by commas.")] = ROWS,
    context: Annotated[int, typer.Option(min=1, help="Units of context of every row.")] = 4096,
    acceptance: Annotated[
        float | None, typer.Option(min=0, max=1, help="Chance that one draft is accepted; default: 0.7.")
    ] = None,
    result: Annotated[
        Path | None, typer.Option(help="Instead, measured acceptance: the JSON of `mmspec bench`.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="The method in that file.")] = None,
    setting: Annotated[str | None, typer.Option(help="The setting in that file, such as 'code, greedy'.")] = None,
    cost: Annotated[float, typer.Option(min=0, max=1, help="Time of a drafted unit, in plain passes.")] = 0.0,
    most: Annotated[int, typer.Option(min=0, max=256, help="Most drafts of a round.")] = 16,
    efficiency: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the GPU's limits that kernels reach.")
    ] = 0.8,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Memory, the floor of a pass, and the best number of drafts for every batch size, by formulas: nothing runs."""
    sizes = _sizes(rows)
    if result is None and (method is not None or setting is not None):
        raise ValueError("--method and --setting choose from a file of measurements: --result FILE.json")
    if result is not None and acceptance is not None:
        raise ValueError("give the acceptance as a number, or --result with what was measured, not both")
    from mmspec_text.plan.work import GPUS, Drafting, forecast, work_of

    if gpu not in GPUS:
        raise ValueError(unknown("GPU", gpu, GPUS))
    if result is None:
        alpha = 0.7 if acceptance is None else acceptance
        drafting = Drafting([alpha**depth for depth in range(1, most + 1)], cost)
    else:
        drafting = _measured(result, method, setting, most, cost)
    work, machine = work_of(model), GPUS[gpu].machine(efficiency)
    found = [forecast(work, machine, size, context, drafting) for size in sizes]
    if json:
        typer.echo(jsonlib.dumps([asdict(one) for one in found], indent=2))
    else:
        _show(found, GPUS[gpu], f"{model} on {gpu}, {context} units of context a row")


def _sizes(rows: str) -> list[int]:
    """Batch sizes, ascending."""
    parts = [part.strip() for part in rows.split(",")]
    wrong = [part for part in parts if not part.isdecimal() or not 0 < int(part) <= 1 << 20]
    if wrong:
        raise ValueError(f"--rows are numbers above 0, joined by commas, such as 1,8,64; not {wrong[0]!r}")
    return sorted({int(part) for part in parts})


def _measured(result: Path, method: str | None, setting: str | None, most: int, cost: float) -> "Drafting":
    """The acceptance of a method in a file of measurements."""
    from mmspec.report.trust import load_result
    from mmspec_text.plan.work import Drafting

    rows = [
        row for row in load_result(result).rows if row.mode == "real" and row.batch == 1 and row.acceptance_by_depth
    ]
    for what, wanted in (("method", method), ("setting", setting)):
        known = list(dict.fromkeys(vars(row)[what] for row in rows))
        if wanted is None or wanted not in known:
            raise ValueError(unknown(what, wanted or "", known))
        rows = [row for row in rows if vars(row)[what] == wanted]
    return Drafting(rows[0].acceptance_by_depth[:most], cost)


def _show(found: "list[Forecast]", gpu: "Gpu", title: str) -> None:
    from mmspec.report.terminal import line, table, terminal

    console = terminal()
    line(console, f"{title}; times are the least that its memory and arithmetic allow")
    columns = ("rows", "memory", "plain pass", "plain", "drafts", "v", "speed-up", "with drafts")
    cells = [
        (
            str(one.rows),
            f"{one.memory / 1e9:.1f} GB" + (" (too much)" if one.memory > gpu.memory else ""),
            f"{1e3 * one.pass_seconds:.2f} ms",
            f"{one.plain:,.0f}/s",
            str(one.drafts),
            f"{one.v:.2f}",
            f"{one.speedup:.2f}",
            f"{one.fast:,.0f}/s",
        )
        for one in found
    ]
    table(console, columns, cells, whole=columns)
    fitting = [one for one in found if one.memory <= gpu.memory]
    useless = [one.rows for one in fitting if one.speedup < PAYS]
    if not fitting:
        line(console, "None of these batches fits its memory.")
    elif useless:
        line(console, f"Speculation stops paying (below {PAYS} times plain) at {useless[0]} rows.")
    else:
        line(console, f"Speculation pays in every batch that fits, up to {fitting[-1].rows} rows.")
