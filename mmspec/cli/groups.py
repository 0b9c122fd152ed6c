"""Parts of commands of several plugins: their group, and, where they train, how a stopped run is resumed."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 130  # exit code after CTRL-C, as shells report it
TERMINATED = 128 + signal.SIGTERM  # exit code after SIGTERM


def group(app: typer.Typer, name: str, help: str, run_all: bool = False) -> typer.Typer:
    """The group of a name, made (with this `help`) by the first call; under `run_all` the group without a command runs
    all its commands in turn, instead of listing them.
    """
    for known in app.registered_groups:
        if known.name == name and known.typer_instance is not None:
            return known.typer_instance
    new = typer.Typer(help=help, no_args_is_help=not run_all, invoke_without_command=run_all)
    if run_all:
        new.callback()(_run_all)
    app.add_typer(new, name=name)
    return new


def _run_all(context: typer.Context) -> None:
    # Before torch is imported. Demos are of small models, for which two threads gain little where cores are free, and
    # cost much where they are shared: each spins while it waits for the other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if context.invoked_subcommand is None:
        for command in context.command.commands.values():  # type: ignore[attr-defined]
            command.main(args=[], standalone_mode=False)


Work = Annotated[Path, typer.Option(help="Folder for checkpoints; delete it to start anew.")]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, …")]


@contextmanager
def resumable(work: Path) -> Iterator[None]:
    """Training inside of the block may be stopped by CTRL-C or SIGTERM, and says what was kept of it."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt(TERMINATED)

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt as stopped:
        kept = any(work.rglob("*.pt"))
        said = (
            f"What was done is kept in {work}; run the same command again to resume."
            if kept
            else ("Nothing was done yet that could be kept; the same command begins anew.")
        )
        typer.echo(f"\nStopped. {said}")
        raise typer.Exit(*(stopped.args or (INTERRUPTED,))) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
