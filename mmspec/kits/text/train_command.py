"""What `mmspec train` commands of language models share: their options, and the answer to CTRL-C."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.cli.places import refuse_folders

Prose = Annotated[
    list[Path], typer.Option(help="Plain text beside the standard library; repeatable.", exists=True, dir_okay=False)
]
Out = Annotated[Path, typer.Option(help="Folder that receives the finished models.")]
Cards = Annotated[Path, typer.Option(help="Folder that receives their model cards.")]
Work = Annotated[Path, typer.Option(help="Folder for checkpoints; delete it to start anew.")]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, …")]


def run_training(train: Callable[[], None], work: Path, *outputs: Path) -> None:
    """Run a recipe that resumes where it stopped.

    Args:
        train: Trains the models, and writes them and their cards.
        work: The folder for checkpoints.
        *outputs: The folders that receive models and cards.

    Raises:
        ValueError: One of the folders cannot be made or written into.
        Exit: The user interrupted the training.
    """
    refuse_folders(*outputs, work)
    try:
        train()
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
