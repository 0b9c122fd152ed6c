"""What `mmspec train` commands of language models share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.cli.places import refuse_folders

if TYPE_CHECKING:
    from mmspec.report.cards import Shipped

Prose = Annotated[
    list[Path], typer.Option(help="Plain text beside the standard library; repeatable.", exists=True, dir_okay=False)
]
Out = Annotated[Path, typer.Option(help="Folder that receives the finished models.")]
Cards = Annotated[Path, typer.Option(help="Folder that receives their model cards.")]
Work = Annotated[Path, typer.Option(help="Folder for checkpoints; delete it to start anew.")]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, …")]


def run_training(
    train: Callable[..., None],
    recipe: Any,
    prose: list[Path],
    work: Path,
    out: Path,
    cards: Path,
    device: str,
    shipped: "Sequence[Shipped]",
) -> None:
    """Run a recipe that resumes where it stopped, and write the cards.

    Args:
        train: The recipe's `train` function.
        recipe: Its sizes and lengths.
        prose: Plain text beside the standard library.
        work: Folder for checkpoints.
        out: Folder that receives the finished models.
        cards: Folder that receives their cards.
        device: Where to train.
        shipped: The descriptions of the models for the cards.
    """
    refuse_folders(out, cards, work)
    from mmspec.kits.text.cards import write_cards

    try:
        train(out, work, prose, recipe, device, typer.echo)
        write_cards(shipped, out, cards)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
