"""`mmspec run TABLE OUT`: a table of prompts, row by row, on this machine or on a cluster of Ray."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.arguments import Device, Drafted, Drafter, Method, Options, PolicyName, RuleName, refuse_method
from mmspec.cli.places import refuse_folders
from mmspec.registry.options import parse

if TYPE_CHECKING:
    from mmspec.tables.run import Engine, Summary

IN_ALL = 4  # calls of a batch: where they share passes, one that ends makes room for the next
FAILED = 1  # exit code where a row has an error


def run(
    table: Annotated[Path, typer.Argument(help="One row a prompt, with ids: .parquet, .jsonl or .csv.")],
    out: Annotated[Path, typer.Argument(help="The folder for the rows' outputs.")],
    model: Annotated[str, typer.Option(help="A shipped model (mmspec/…), a folder, or a hub name.")],
    *,
    method: Method = "auto",
    drafter: Drafter = None,
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    policy: PolicyName = None,
    opt: Options = None,
    arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An argument of the pipeline's calls; repeatable.")
    ] = None,
    exactness: Annotated[
        str, typer.Option(help="The least that the method has to promise: invariant, lossless, lossy.")
    ] = "invariant",
    seed: Annotated[int, typer.Option(help="Of the run; a row's own is made of it and of the row's id.")] = 0,
    id: Annotated[str, typer.Option("--id", help="The column of ids.")] = "id",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a pass.")] = 8,
    rows_per_file: Annotated[int, typer.Option(min=1, help="Rows that are written at a time.")] = 64,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the weights; float32 is the one in which equality is promised.")] = (
        "float32"
    ),
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A cluster of Ray; `local` starts one on this machine.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="With --ray: how many pipelines are loaded.")] = 2,
    resume: Annotated[
        bool, typer.Option("--resume", help="Compute the rows that the folder does not have yet.")
    ] = False,
) -> None:
    """Compute every row of a table: texts, pictures or clips, by its columns `prompt`, `class_labels` and others.

    A row's seed is made of the run's seed and the row's id. Under an invariant method the row is then the same whatever
    else the table holds, and however it is split into calls and workers. Rows are written as they come; a run that was
    stopped goes on with --resume, and computes none of them again. A row that cannot be computed has the reason in the
    column `error`.

    Exit code 0: every row has an output. 1: a row has an error. 2: nothing could be computed.
    """
    refuse_method(method)
    refuse_folders(out)
    from transformers.utils import logging

    from mmspec.api.rows import GROUP, Rows
    from mmspec.hosts.devices import dtype_of
    from mmspec.tables.reading import read_table
    from mmspec.tables.run import here, run

    dtype_of(dtype, None)
    parts = {"drafter": drafter, "rule": rule, "k": num_speculative_tokens, "policy": policy}
    loading = {name: value for name, value in parts.items() if value is not None} | parse(opt or ())
    call = {name: _number(value) for name, value in parse(arg or ()).items()}
    told: dict[str, Any] = {"method": method, "seed": seed, "id": id, "rows": rows, "exactness": exactness}
    _refuse_managed(call, told)
    computing = Rows(model, **told, loading={**loading, "device": device, "dtype": dtype}, **call)
    given = read_table(table, numbers=(*GROUP, "class_labels"))
    engine: Engine = here
    if ray is not None:
        from mmspec.tables.cluster import on_ray

        engine = on_ray(ray, workers, rows)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    from tqdm import tqdm

    with tqdm(total=len(given.rows), desc=f"run {table.name}", unit="row", leave=False) as bar:
        how: dict[str, Any] = {
            "batch": IN_ALL * rows,
            "per_file": rows_per_file,
            "resume": resume,
            "progress": bar.update,
        }
        summary = run(computing, given, out, engine, **how)
    typer.echo("\n".join(_lines(summary, out)), err=True)
    if summary.errors:
        raise typer.Exit(FAILED)


def _refuse_managed(call: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    for name in call.keys() & (told.keys() | {"loading", "name"}):
        raise ValueError(
            f"--arg is for arguments of the pipeline's calls; {name!r} is none, or has an option of its own"
        )


def _number(value: Any) -> Any:
    """A text that reads as a number, as that number; any other value as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _lines(summary: "Summary", out: Path) -> Iterable[str]:
    calls = summary.calls
    yield f"{out}: {summary.rows} rows, {summary.computed} of them computed now, in {summary.seconds:.1f} s"
    if calls["calls"]:
        yield (
            f"{', '.join(calls['methods'])}: {calls['emitted']} units in {calls['rounds']} passes of {calls['calls']} "
            f"calls, acceptance length {calls['acceptance_length']:.2f}, acceptance rate {calls['acceptance_rate']:.2f}"
        )
    if summary.errors:
        yield f"{summary.errors} rows have an error; the first: {summary.first_error}"
