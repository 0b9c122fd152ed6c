"""`mmspec train image`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.cli.places import refuse_folders


def train_image(
    data: Annotated[
        Path, typer.Option(help="Folder with emoji64.npz (images) and captions.txt.", exists=True, file_okay=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder that receives the finished model.")] = Path("assets"),
    cards: Annotated[Path, typer.Option(help="Folder that receives its model card.")] = Path("model_cards"),
    work: Annotated[Path, typer.Option(help="Folder for checkpoints; delete it to start anew.")] = Path("runs/image"),
    vq_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the tokenizer.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the transformer.")] = None,
    refining: Annotated[
        int | None, typer.Option(min=1, help="Its further steps, after codes some of which are wrong.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, …")] = "cpu",
) -> None:
    """Train a VQ tokenizer, a transformer over its codes, the features that judge them; resumes where it stopped."""
    refuse_folders(out, cards, work)

    from mmspec.kits.pictures.data import load
    from mmspec_image.cards import write_all
    from mmspec_image.train.recipe import ImageRecipe
    from mmspec_image.train.ship import train_and_ship

    lengths = {"vq_steps": vq_steps, "steps": steps, "refining": refining}
    recipe = ImageRecipe(**{name: n for name, n in lengths.items() if n is not None})
    try:
        train_and_ship(load(data), recipe, out, work, device, typer.echo)
        write_all(out, cards)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
