"""`mmspec train image` and `mmspec train image-head`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.places import refuse_folders
from mmspec.kits.pictures.command import Assets, Cards, Data, Model, TrainDevice, Work, pipeline, resumable


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


def train_image_head(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder that receives the head.")],
    model: Model = "mmspec/emoji",
    work: Work = Path("runs/image-head"),
    pictures: Annotated[int | None, typer.Option(min=1, help="Pictures that are read.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    device: TrainDevice = "cpu",
) -> None:
    """Train a head that predicts the next row of a picture, for the method spatial-head; resumes where it stopped."""
    refuse_folders(out, work)

    from mmspec.files import save_whole
    from mmspec.kits.pictures.data import load
    from mmspec_image.train.spatial_head import HeadRecipe, overlap, states_of, train_head

    lengths = {"pictures": pictures, "steps": steps}
    recipe = HeadRecipe(**{name: n for name, n in lengths.items() if n is not None})
    pipe, shown = pipeline(model, device), load(data)
    with resumable(work):
        head = train_head(pipe, shown, recipe, work, typer.echo)
        states, codes = states_of(pipe, shown, shown.held_out.nonzero()[:96, 0])
        found = overlap(head, pipe.transformer, states.to(device).float(), codes.to(device), guidance=2.0)
        typer.echo(f"held-out pictures, guidance 2: overlap with the target's distribution {found:.3f}")
        save_whole(out, head.save_pretrained)
