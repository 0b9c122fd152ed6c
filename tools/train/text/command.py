"""The recipes of language models and their heads, as commands."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import tools.cards.models.ssm
import tools.cards.models.text
from mmspec.cli.groups import Device, Work
from tools.train.shipping import ASSETS, CARDS, Cards, Out, given, made
from tools.train.text import hybrid, judge, llama
from tools.train.text.heads import PPD, RECIPE, TARGETS, name_of, train_shipped_head

Prose = Annotated[
    list[Path], typer.Option(help="Plain text beside the standard library; repeatable.", exists=True, dir_okay=False)
]
Steps = Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")]


def train_text(
    prose: Prose,
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/text"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the target.")] = None,
    whole_steps: Annotated[int | None, typer.Option(min=1, help="Its steps on sequences of full length.")] = None,
    drafter_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the drafter.")] = None,
    device: Device = "cpu",
) -> None:
    """Train a tokenizer, a small Llama and a drafter distilled from it; resumes where it stopped."""
    recipe = llama.TextRecipe(**given(steps=steps, whole_steps=whole_steps, drafter_steps=drafter_steps))
    with made(tools.cards.models.text.MODELS, out, cards, work):
        llama.train(out, work, prose, recipe, device, typer.echo)


def train_ssm(
    prose: Prose,
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/ssm"),
    steps: Steps = None,
    hard: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the next-token loss; 1 does without the teacher.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Train a small hybrid of Mamba-2 and attention, distilled from the text target; resumes where it stopped."""
    with made(tools.cards.models.ssm.SHIPPED, out, cards, work):
        hybrid.train(out, work, prose, hybrid.SsmRecipe(**given(steps=steps, hard=hard)), device, typer.echo)


def train_eagle3(
    prose: Prose,
    target: Annotated[str, typer.Option(help="A shipped language model.")] = TARGETS[0],
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/text-eagle3"),
    steps: Steps = None,
    device: Device = "cpu",
) -> None:
    """Train the EAGLE-3 head of a shipped model on what it learned, and wrote; resumes where it stopped."""
    recipe = replace(RECIPE, **given(steps=steps))
    shipped = [head for head in tools.cards.models.text.HEADS if head.name == name_of(target)]
    with made(shipped, out, cards, work):
        train_shipped_head(out, work, prose, recipe, device, typer.echo, target)


def train_ppd(
    prose: Prose,
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/text-ppd"),
    steps: Steps = None,
    device: Device = "cpu",
) -> None:
    """Train the prompt tokens of the shipped text model on what it learned, and wrote; resumes where it stopped."""
    recipe, name = replace(PPD, **given(steps=steps)), name_of(TARGETS[0], "ppd")
    with made([head for head in tools.cards.models.text.HEADS if head.name == name], out, cards, work):
        train_shipped_head(out, work, prose, recipe, device, typer.echo, kind="ppd")


def train_judge(
    prose: Prose,
    out: Out = ASSETS,
    cards: Cards = CARDS,
    work: Work = Path("runs/text-judge"),
    questions: Annotated[int, typer.Option(min=20, help="Questions about what the model learnt.")] = 600,
    device: Device = "cpu",
) -> None:
    """Train the judge of the shipped text model by labels that its draft model and its own answers give."""
    with made([head for head in tools.cards.models.text.HEADS if head.name == judge.NAME], out, cards, work):
        judge.train(out, prose, questions, device, typer.echo)
