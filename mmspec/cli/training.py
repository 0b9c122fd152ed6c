"""What commands that train share: two options, and how a run that CTRL-C stopped is resumed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import INTERRUPTED

Work = Annotated[Path, typer.Option(help="Folder for checkpoints; delete it to start anew.")]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, …")]


@contextmanager
def resumable(work: Path) -> Iterator[None]:
    """Training inside of the block may be stopped by CTRL-C, and says how it is resumed.

    Raises:
        typer.Exit: It was stopped.
    """
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
