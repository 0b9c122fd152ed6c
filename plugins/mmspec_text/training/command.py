"""`mmspec train drafter`: a drafter for any text model. Imports nothing heavy; running it does."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.groups import Device, Work, resumable
from mmspec.cli.places import refuse_folders
from mmspec.registry.options import parse
from mmspec.registry.suggest import unknown


def train_drafter(
    target: Annotated[str, typer.Option(help="The model to draft for: a folder, a hub name, mmspec/….")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that receives the drafter.")],
    kind: Annotated[
        str, typer.Option(help="Heads on the target's states: eagle3, mtp, medusa, dflash. model: a draft model.")
    ] = "eagle3",
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help='JSON lines, {"text": "…"} or {"messages": […]} each; of messages the answers are learnt; repeatable.',
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    self_generated: Annotated[
        int, typer.Option(min=0, help="Tokens that the target writes: answers, or ends of the texts.")
    ] = 0,
    template: Annotated[
        list[str] | None,
        typer.Option(help="name=value of a variable of the chat template: enable_thinking=false; repeatable."),
    ] = None,
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
    intermediate: Annotated[int | None, typer.Option(min=1, help="Numbers inside a head's MLPs.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, max=16, help="Layers of a DFlash head.")] = None,
    anchors: Annotated[
        int | None, typer.Option(min=1, max=512, help="Most blocks of a sequence that a DFlash head learns.")
    ] = None,
    own_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of sequences that the target wrote.")
    ] = None,
    drafter_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of sequences that a draft model ends (DistillSpec)."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=10, help="Of what the target writes; 0: greedy.")
    ] = None,
    draft_vocab: Annotated[
        int | None, typer.Option(min=1, help="Ids that an EAGLE-3 head scores: the most frequent ones.")
    ] = None,
    keep_tokens: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="Share of tokens that are learnt (AdaSPEC's filter: 0.4).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights, of the order of sequences, of sampling.")] = None,
    device: Device = "cpu",
) -> None:
    """Train a drafter for a text model: a head on its hidden states, or a small draft model.

    An EAGLE-3 head is written in the format of speculators, a multi-token layer (mtp) under DeepSeek-V3's keys,
    Medusa's heads in vLLM's layout, and a DFlash head in its authors'.

    It resumes where it stopped. Train on texts like those that the model is used for. Conversations are put into its
    chat template, one row for every answer. What the target writes itself is what its drafter will meet.
    """
    given = dict(locals())
    refuse_folders(out, work)
    from mmspec_text.training.recipe import DRAFTERS, KINDS_OWN, DrafterRecipe

    if kind not in DRAFTERS:
        raise ValueError(unknown("kind of drafter", kind, DRAFTERS))
    if not data and not self_generated:
        raise ValueError("there is nothing to train on: give --data FILE.jsonl, --self-generated N, or both")
    named = {field.name for field in fields(DrafterRecipe)}
    chosen = {name: value for name, value in given.items() if name in named and value is not None}
    recipe = DrafterRecipe(**{**KINDS_OWN.get(kind, {}), **chosen})
    variables = {variable: _value(text) for variable, text in parse(template or ()).items()}

    def read(model: Any, tokenizer: Any) -> Any:
        from mmspec_text.training.data import read_data

        return read_data(list(data or ()), self_generated, model, tokenizer, recipe, variables)

    _run(kind, target, read, recipe, out, work, device)


def _value(text: Any) -> Any:
    """A variable's value: true, false and numbers are no words."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _run(
    kind: Any, target: str, read: Callable[[Any, Any], Any], recipe: Any, out: Path, work: Path, device: str
) -> None:
    from mmspec.hosts.loading import load_model, load_tokenizer
    from mmspec_text.training.run import train_drafter

    model, tokenizer = load_model(target, device).float(), load_tokenizer(target)
    with resumable(work):
        train_drafter(kind, model, tokenizer, read(model, tokenizer), recipe, out, work, target, typer.echo)
