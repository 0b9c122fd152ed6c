"""`mmspec train video`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.cli.places import refuse_folders


def train_video(
    out: Annotated[Path, typer.Option(help="Folder that receives the finished models.")] = Path("assets"),
    cards: Annotated[Path, typer.Option(help="Folder that receives their model cards.")] = Path("model_cards"),
    work: Annotated[Path, typer.Option(help="Folder for frames and checkpoints; delete it to start anew.")] = Path(
        "runs/video"
    ),
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
    device: Annotated[str, typer.Option(help="Device to train on: cpu, cuda, cuda:1, …")] = "cpu",
) -> None:
    """Render a world, train a token model and a denoising model of it, each with its autoencoder; resumes."""
    refuse_folders(out, cards, work)

    from mmspec_video.cards import write_all
    from mmspec_video.train.recipe import VideoRecipe
    from mmspec_video.train.ship import train_and_ship

    options = {
        "episodes": episodes,
        "vq_steps": vq_steps,
        "vae_steps": vae_steps,
        "token_steps": token_steps,
        "whole_steps": whole_steps,
        "dit_steps": dit_steps,
        "student_steps": student_steps,
    }
    recipe = VideoRecipe(**{name: n for name, n in options.items() if n is not None})
    try:
        train_and_ship(recipe, out, work, device, distill, typer.echo)
        write_all(out, cards)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
