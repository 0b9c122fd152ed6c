"""`mmspec train image`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.places import refuse_folders
from mmspec.kits.pictures.command import Assets, Cards, Data, TrainDevice, Work, resumable


def train_image(
    data: Data,
    out: Assets = Path("assets"),
    cards: Cards = Path("model_cards"),
    work: Work = Path("runs/image"),
    vq_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the tokenizer.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the transformer.")] = None,
    refining: Annotated[
        int | None, typer.Option(min=1, help="Its further steps, after codes some of which are wrong.")
    ] = None,
    device: TrainDevice = "cpu",
) -> None:
    """Train a VQ tokenizer, a transformer over its codes, the features that judge them; resumes where it stopped."""
    refuse_folders(out, cards, work)

    from mmspec.kits.pictures.data import load
    from mmspec.kits.pictures.ship import write_cards
    from mmspec_image.cards import SHIPPED
    from mmspec_image.train.recipe import ImageRecipe
    from mmspec_image.train.ship import train_and_ship

    lengths = {"vq_steps": vq_steps, "steps": steps, "refining": refining}
    recipe = ImageRecipe(**{name: n for name, n in lengths.items() if n is not None})
    with resumable(work):
        train_and_ship(load(data), recipe, out, work, device, typer.echo)
        write_cards(SHIPPED, out, cards)
