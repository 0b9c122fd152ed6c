"""`mmspec train infill` and `mmspec generate infill`. Imports nothing heavy; running them does."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.arguments import Device, Drafted, Method, Options, RuleName, refuse_method
from mmspec.cli.groups import Device as TrainingDevice
from mmspec.cli.groups import Work, resumable
from mmspec.cli.places import refuse_folders, refuse_taken


def train_infill(
    target: Annotated[str, typer.Option(help="An XLNet and its tokenizer: a folder, or a hub name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that receives the model.")],
    data: Annotated[
        list[Path],
        typer.Option(help='JSON lines, {"text": "…"} each; repeatable.', exists=True, dir_okay=False),
    ],
    *,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = 5000,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a batch.")] = 8,
    context: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 512,
    rising: Annotated[
        int, typer.Option(min=1, help="Steps in which the share of blanks rises from 0.15 to 0.85 and more.")
    ] = 5000,
    learning_rate: Annotated[float, typer.Option(min=1e-7, max=1, help="The peak.")] = 1e-5,
    anew: Annotated[bool, typer.Option("--anew", help="Draw the model's weights anew.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, of places, of blanks.")] = 0,
    work: Work = Path("runs/infill"),
    device: TrainingDevice = "cpu",
) -> None:
    """Train an XLNet to fill blanks in any text, for the method assd. It resumes where it stopped."""
    refuse_folders(work)
    inputs = {"the target": Path(target), **{f"the data {file}": file for file in data}}
    refuse_taken(out, {**inputs, "the work (--work)": work})
    from mmspec.training.work import refuse_foreign

    refuse_foreign(work)
    from mmspec.hosts.loading import load_model, load_tokenizer
    from mmspec_zoo.infill.training import InfillRecipe, tokens_of, train_and_write

    tokenizer = load_tokenizer(target)
    units = tokens_of(data, tokenizer)
    model = load_model(target, device)
    recipe = InfillRecipe(steps, batch, context, rising, learning_rate, anew, seed)
    with resumable(work):
        facts = train_and_write(model.float(), tokenizer, units, recipe, out, work, name=target, say=typer.echo)
    typer.echo(f"{out.name}: {facts['parameters']:,} parameters; held out: {json.dumps(facts['held_out'])}")
    typer.echo(f"Next: mmspec generate infill --model {out} 'a text with <mask> in it'")


def generate_infill(
    prompt: Annotated[str, typer.Argument(help="A text; each <mask> in it is a blank of one token.")],
    *,
    model: Annotated[str, typer.Option(help="An XLNet and its tokenizer: a folder, or a hub name.")],
    method: Method = "assd",
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    opt: Options = None,
    device: Device = "cpu",
) -> None:
    """Fill the blanks of a text, from left to right, several in a pass."""
    refuse_method(method)
    import mmspec
    from mmspec.api.stored import Stored
    from mmspec.hosts.loading import architectures
    from mmspec.registry.options import parse
    from mmspec_zoo.infill.pipeline import InfillPipeline

    stored = Stored.named(model)
    if "XLNetLMHeadModel" not in architectures(model) if stored is None else stored.pipeline is not InfillPipeline:
        raise ValueError(f"{model} fills no blanks; an XLNet does (XLNetLMHeadModel)")
    how = {**parse(opt or []), "method": method, "rule": rule, "k": num_speculative_tokens}
    pipe = mmspec.Pipeline.from_pretrained(model, device=device, **how)
    made: Any = pipe(prompt, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    typer.echo(made.texts[0])
    typer.echo(str(made.report), err=True)
