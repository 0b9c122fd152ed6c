"""`mmspec train continuous`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.places import refuse_folders
from mmspec.kits.pictures.command import Assets, Cards, Data, TrainDevice, Work, resumable


def train_continuous(
    data: Data,
    out: Assets = Path("assets"),
    cards: Cards = Path("model_cards"),
    work: Work = Path("runs/continuous"),
    kl_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the autoencoder.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the transformer.")] = None,
    device: TrainDevice = "cpu",
) -> None:
    """Train a KL autoencoder, a transformer over its tokens, the features that judge them; resumes where it stopped."""
    refuse_folders(out, cards, work)

    from mmspec.kits.pictures.data import load
    from mmspec.kits.pictures.ship import write_cards
    from mmspec_continuous.cards import SHIPPED
    from mmspec_continuous.train.recipe import ContinuousRecipe
    from mmspec_continuous.train.ship import train_and_ship

    lengths = {"kl_steps": kl_steps, "steps": steps}
    recipe = ContinuousRecipe(**{name: n for name, n in lengths.items() if n is not None})
    with resumable(work):
        train_and_ship(load(data), recipe, out, work, device, typer.echo)
        write_cards(SHIPPED, out, cards)
