"""What all commands of `python -m tools.train` share: where models and their cards are written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.groups import resumable
from mmspec.cli.places import refuse_folders
from tools.cards.cards import Shipped, write

Out = Annotated[Path, typer.Option(help="Folder that receives the finished models.")]
Cards = Annotated[Path, typer.Option(help="Folder that receives their model cards.")]
ASSETS, CARDS = Path("assets"), Path("model_cards")


@contextmanager
def made(models: Sequence[Shipped], out: Path, cards: Path, work: Path) -> Iterator[None]:
    """The block trains models into `out`, resuming what is in `work`; then their cards are rendered.

    Raises:
        ValueError: A folder cannot be written.
        typer.Exit: Training was stopped.
    """
    refuse_folders(out, cards, work)
    with resumable(work):
        yield
        write_cards(models, out, cards)


def write_cards(models: Sequence[Shipped], assets: Path, cards: Path) -> None:
    """Render the cards of models in `assets` into the folder `cards`; it is made if missing."""
    cards.mkdir(parents=True, exist_ok=True)
    for model in models:
        write(model, assets, cards)


def given(**lengths: Any) -> dict[str, Any]:
    """The options of a recipe that the user gave; the others keep the recipe's own."""
    return {name: value for name, value in lengths.items() if value is not None}
