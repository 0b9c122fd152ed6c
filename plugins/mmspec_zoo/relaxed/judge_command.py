"""`mmspec train judge`: a judge for any text model. Imports nothing heavy; running it does."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import Device
from mmspec.cli.places import refuse_unwritable

HELD_OUT = 10  # one line in so many is held out, if there are as many


def train_judge(
    target: Annotated[str, typer.Option(help="The model that the judge is for: a folder, a hub name, mmspec/….")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File that receives the judge: judge.safetensors.")],
    data: Annotated[
        list[Path],
        typer.Option(
            help='JSON lines, {"prompt": "…", "correct": "…", "wrong": "…"} each; repeatable.',
            exists=True,
            dir_okay=False,
        ),
    ],
    wrong_weight: Annotated[
        float | None, typer.Option(min=1e-3, help="Weight of a wrong token over a right one's; by default balanced.")
    ] = None,
    decay: Annotated[float, typer.Option(min=0, help="Weight decay; higher judges more alike.")] = 1e-2,
    device: Device = "cpu",
) -> None:
    """Train a judge: a linear layer that says whether a drafted token is right, for the lossy method judge.

    The first token by which a wrong answer differs from the right one is the wrong token. Give answers to questions
    like those that the model is used for: a judge knows no others.
    """
    refuse_unwritable(out)
    from mmspec.hosts.fingerprint import identity
    from mmspec.hosts.loading import load_model, load_tokenizer
    from mmspec_zoo.relaxed.judge import JudgeHead
    from mmspec_zoo.relaxed.judge_training import fitted, rates, read_triples, states_of

    triples = read_triples(data, load_tokenizer(target))
    model = load_model(target, device)
    held = triples[::HELD_OUT] if len(triples) >= HELD_OUT else []
    learnt = [triple for number, triple in enumerate(triples) if not held or number % HELD_OUT]
    judged = states_of(model, learnt)
    typer.echo(f"training on {int(judged.right.sum()):,} right tokens and {int((~judged.right).sum()):,} wrong ones")
    weight, bias = fitted(judged, wrong_weight, decay)
    JudgeHead(weight, bias, target, identity(model)).save(out)
    for words, some in (("learnt", judged), *((("held out", states_of(model, held)),) if held else ())):
        shares = ", ".join(f"{name} {share:.1%}" for name, share in rates(some, weight, bias).items())
        typer.echo(f"{words}: {shares}")
