"""`mmspec train ssm`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.cli.places import refuse_folders


def train_ssm(
    prose: Annotated[
        list[Path],
        typer.Option(help="Plain text beside the standard library; repeatable.", exists=True, dir_okay=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder that receives the finished model.")] = Path("assets"),
    cards: Annotated[Path, typer.Option(help="Folder that receives its model card.")] = Path("model_cards"),
    work: Annotated[Path, typer.Option(help="Folder for checkpoints; delete it to start anew.")] = Path("runs/ssm"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    hard: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the next-token loss; 1 does without the teacher.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, …")] = "cpu",
) -> None:
    """Train a small hybrid of Mamba-2 and attention, distilled from the text target; resumes where it stopped."""
    refuse_folders(out, cards, work)

    from mmspec.kits.text.corpus import load
    from mmspec_ssm.cards import write_all
    from mmspec_ssm.train.recipe import SsmRecipe
    from mmspec_ssm.train.ship import train_and_ship

    given = {"steps": steps, "hard": hard}
    recipe = SsmRecipe(**{name: value for name, value in given.items() if value is not None})
    try:
        train_and_ship(load(prose), recipe, out, work, device, typer.echo)
        write_all(out, cards)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
