"""The recipes of models that draw captions, as commands."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import tools.cards.models.continuous
import tools.cards.models.image
from mmspec.cli.groups import Device, Work, resumable
from mmspec.cli.places import refuse_folders
from tools.train.pictures import codes, flow, head, tokens
from tools.train.pictures.data import load
from tools.train.shipping import ASSETS, CARDS, Cards, Out, given, made

Data = Annotated[
    Path, typer.Option(help="Folder with emoji64.npz (images) and captions.txt.", exists=True, file_okay=False)
]
Steps = Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the transformer.")]


def train_image(
    data: Data,
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/image"),
    vq_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the tokenizer.")] = None,
    steps: Steps = None,
    refining: Annotated[
        int | None, typer.Option(min=1, help="Its further steps, after codes some of which are wrong.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Train a VQ tokenizer, a transformer over its codes, the features that judge them; resumes where it stopped."""
    recipe = codes.ImageRecipe(**given(vq_steps=vq_steps, steps=steps, refining=refining))
    with made(tools.cards.models.image.MODELS, out, cards, work):
        codes.train_and_ship(load(data), recipe, out, work, device, typer.echo)


def train_image_eagle(
    data: Data,
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/image-eagle"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
) -> None:
    """Train LANTERN's drafter for the shipped picture model, on the codes that it learned; resumes where it stopped."""
    recipe = replace(head.RECIPE, **given(steps=steps))
    with made(tools.cards.models.image.HEADS, out, cards, work):
        typer.echo(head.train_head(load(data), recipe, out / "emoji-eagle", work, typer.echo)["held_out"])


def train_continuous(
    data: Data,
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/continuous"),
    kl_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the autoencoder.")] = None,
    steps: Steps = None,
    device: Device = "cpu",
) -> None:
    """Train a KL autoencoder, a transformer over its tokens, the features that judge them; resumes where it stopped."""
    recipe = tokens.ContinuousRecipe(**given(kl_steps=kl_steps, steps=steps))
    with made(tools.cards.models.continuous.SHIPPED, out, cards, work):
        tokens.train_and_ship(load(data), recipe, out, work, device, typer.echo)


def train_flow(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder that receives the pipeline.")] = Path("runs/flow/pipeline"),
    work: Work = Path("runs/flow"),
    steps: Steps = None,
    device: Device = "cpu",
) -> None:
    """Train a small flow-matching transformer over the emoji's latents, for figures; resumes where it stopped."""
    refuse_folders(out, work)
    with resumable(work):
        lost = flow.train_flow(load(data), flow.FlowRecipe(**given(steps=steps)), out, work, device, typer.echo)
        typer.echo(f"loss of held-out pictures {lost:.4f}")
