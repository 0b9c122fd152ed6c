"""`mmspec train drafter`: a drafter for any text model. Imports nothing heavy; running it does."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.cli.places import refuse_folders
from mmspec.kits.text.train_command import Device, Work
from mmspec.registry.suggest import unknown


def train_drafter(
    target: Annotated[str, typer.Option(help="The model to draft for: a folder, a hub name, mmspec/….")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that receives the drafter.")],
    kind: Annotated[
        str, typer.Option(help="Heads on the target's states: eagle3, mtp, medusa. model: a draft model.")
    ] = "eagle3",
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help='JSON lines, {"text": "…"} or {"messages": […]} each; repeatable.', exists=True, dir_okay=False
        ),
    ] = None,
    self_generated: Annotated[
        int, typer.Option(min=0, help="Tokens that the target writes, behind beginnings of the texts or of its own.")
    ] = 0,
    work: Work = Path("runs/drafter"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step.")] = None,
    context: Annotated[int | None, typer.Option(min=8, help="Tokens of a sequence.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, max=16, help="Tokens of a draft under training.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="kl, reverse-kl, jsd, tv, tv++, alpha, lk or hard; see mmspec.training.losses.")
    ] = None,
    hard: Annotated[float | None, typer.Option(min=0, max=1, help="Share of the text's tokens in the loss.")] = None,
    decay: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="Weight of a depth over that of the one before.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(min=1e-6, max=1, help="The peak.")] = None,
    intermediate: Annotated[int | None, typer.Option(min=1, help="Numbers inside an EAGLE-3 head's MLP.")] = None,
    own_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of sequences that the target wrote.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=10, help="Of what the target writes; 0: greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights, of the order of sequences, of sampling.")] = None,
    device: Device = "cpu",
) -> None:
    """Train a drafter for a text model: a head on its hidden states, or a small draft model.

    An EAGLE-3 head is written in the format of speculators, a multi-token layer (mtp) under DeepSeek-V3's keys, and
    Medusa's heads in vLLM's layout.

    It resumes where it stopped. Train on texts like those that the model is used for, in its chat template; what the
    target writes itself is what its drafter will meet.
    """
    given = dict(locals())
    refuse_folders(out, work)
    from mmspec_text.training.recipe import DRAFTERS, DrafterRecipe

    if kind not in DRAFTERS:
        raise ValueError(unknown("kind of drafter", kind, DRAFTERS))
    if not data and not self_generated:
        raise ValueError("there is nothing to train on: give --data FILE.jsonl, --self-generated N, or both")
    named = {field.name for field in fields(DrafterRecipe)}
    recipe = DrafterRecipe(**{name: value for name, value in given.items() if name in named and value is not None})
    _run(kind, target, list(data or ()), self_generated, recipe, out, work, device)


def _run(kind: Any, target: str, files: list[Path], own: int, recipe: Any, out: Path, work: Path, device: str) -> None:
    from mmspec.hosts.loading import load_model, load_tokenizer
    from mmspec_text.training.data import read_data
    from mmspec_text.training.run import train_drafter

    model, tokenizer = load_model(target, device).float(), load_tokenizer(target)
    data = read_data(files, own, model, tokenizer, recipe)
    try:
        train_drafter(kind, model, tokenizer, data, recipe, out, work, target, typer.echo)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
