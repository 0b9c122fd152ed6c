"""`mmspec train image-head`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import Device, Work, resumable
from mmspec.cli.places import refuse_folders
from mmspec.kits.pictures.command import Data, Model, pipeline


def train_image_head(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder that receives the head.")],
    model: Model = "mmspec/emoji",
    work: Work = Path("runs/image-head"),
    pictures: Annotated[int | None, typer.Option(min=1, help="Pictures that are read.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    device: Device = "cpu",
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
