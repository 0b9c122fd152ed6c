"""The recipe of the world models, as a command."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import Device, Work
from tools.cards.models.video import SHIPPED
from tools.train.shipping import ASSETS, CARDS, Cards, Out, given, made
from tools.train.video.recipe import VideoRecipe
from tools.train.video.ship import train_and_ship


def train_video(
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/video"),
    distill: Annotated[bool, typer.Option(help="Train a consistency student of the denoising model, too.")] = False,
    episodes: Annotated[int | None, typer.Option(min=10, help="Episodes to render.")] = None,
    vq_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the token model's VQ.")] = None,
    vae_steps: Annotated[
        int | None, typer.Option(min=1, help="Optimiser steps of the denoising model's autoencoder.")
    ] = None,
    token_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the token model.")] = None,
    whole_steps: Annotated[int | None, typer.Option(min=1, help="Its further steps, of whole windows.")] = None,
    dit_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the denoising model.")] = None,
    student_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the student.")] = None,
    device: Device = "cpu",
) -> None:
    """Render a world, train a token model and a denoising model of it, each with its autoencoder; resumes."""
    lengths = given(
        episodes=episodes,
        vq_steps=vq_steps,
        vae_steps=vae_steps,
        token_steps=token_steps,
        whole_steps=whole_steps,
        dit_steps=dit_steps,
        student_steps=student_steps,
    )
    with made(SHIPPED, out, cards, work):
        train_and_ship(VideoRecipe(**lengths), out, work, device, distill, typer.echo)
