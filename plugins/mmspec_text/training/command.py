"""`mmspec train drafter`: a drafter for any text model. Imports nothing heavy; running it does."""

import json
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from mmspec.cli.groups import Device, Work, resumable
from mmspec.cli.places import refuse_folders, refuse_taken
from mmspec.registry.options import parse
from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec_text.training.recipe import DRAFTERS, KINDS_OWN, DrafterRecipe


def train_drafter(
    target: Annotated[str, typer.Option(help="The model to draft for: a folder, a hub name, mmspec/….")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that receives the drafter.")],
    *,
    kind: Annotated[
        str,
        typer.Option(
            help="Heads: eagle, fspad, falcon, eagle3, mtp, medusa, clover, dflash; inside the target: ppd, "
            "gated-lora; draft models: pard, model, sorted; the target itself: layer-skip."
        ),
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
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the target; the drafter learns in float32.")] = "float32",
    **numbers: Any,
) -> None:
    """Train a drafter for a text model: a head on its hidden states, or a small draft model.

    An EAGLE-3 head is written in the format of speculators, a multi-token layer (mtp) under DeepSeek-V3's keys,
    heads of EAGLE-1 (eagle), FSPAD, Falcon and DFlash and prompt tokens (ppd) in their authors' layouts. So are
    Medusa's heads; with --no-own-output they are in vLLM's. A draft model, which of the kind pard fills in masks, is a
    folder of transformers', and so is the target that layer-skip trains.

    It resumes where it stopped. Train on texts like those that the model is used for. Conversations are put into its
    chat template, one row for every answer. What the target writes itself is what its drafter will meet.
    """
    given = {"the head": "head", "the draft model": "draft_model", "the reference": "reference"}
    named = {"the target": target, **{what: numbers.get(name) for what, name in given.items()}}
    inputs = {what: Path(name) for what, name in named.items() if name} | {f"the data {at}": at for at in data or ()}
    refuse_folders(work)
    refuse_taken(out, {**inputs, "the work (--work)": work})
    if out.resolve().is_relative_to(work.resolve()):
        raise ValueError(f"{shown(out)} (--out) is in {shown(work)} (--work); name another folder")
    if kind not in DRAFTERS:
        raise ValueError(unknown("kind of drafter", kind, DRAFTERS))
    if not data and not self_generated:
        raise ValueError("there is nothing to train on: give --data FILE.jsonl, --self-generated N, or both")
    chosen = {name: value for name, value in numbers.items() if value is not None}
    recipe = DrafterRecipe(**{**KINDS_OWN.get(kind, {}), **chosen})
    recipe.refuse_for(kind, bool(data), self_generated > 0)
    variables = {variable: _value(text) for variable, text in parse(template or ()).items()}
    from mmspec.hosts.devices import dtype_of
    from mmspec.training.work import refuse_foreign

    refuse_foreign(work)
    of_target = dtype_of(dtype)
    from mmspec.hosts.loading import load_model, load_tokenizer
    from mmspec_text.training import run
    from mmspec_text.training.data import read_data

    model, tokenizer = load_model(target, device, of_target), load_tokenizer(target)
    with resumable(work):
        read = read_data(list(data or ()), self_generated, model, tokenizer, recipe, variables)
        run.train_drafter(
            kind, model, tokenizer, read, recipe=recipe, folder=out, work=work, name=target, say=typer.echo
        )


def _value(text: Any) -> Any:
    """A variable's value: true, false and numbers are no words."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _take_recipe(command: Any) -> None:
    """Let a command have an option for each number of a recipe; None where the user gives none."""
    own = signature(command)
    known = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    for name, hint in get_type_hints(DrafterRecipe, include_extras=True).items():
        optional = hint.__origin__ | None
        kind: Any = Annotated[optional, *hint.__metadata__]
        known.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    command.__signature__ = own.replace(parameters=known)


_take_recipe(train_drafter)
