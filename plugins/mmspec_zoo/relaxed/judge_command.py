"""`mmspec train judge`: a judge for any text model. Imports nothing heavy; running it does."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.groups import Device
from mmspec.cli.places import refuse_unwritable

HELD_OUT = 10  # one line in so many is held out, if there are as many
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def train_judge(
    target: Annotated[str, typer.Option(help="The model that the judge is for: a folder, a hub name, mmspec/….")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File that receives the judge: judge.safetensors.")],
    data: Annotated[
        list[Path],
        typer.Option(
            help='JSON lines, {"prompt": "…", "correct": "…", "wrong": "…"} each, or prompts alone; repeatable.',
            exists=True,
            dir_okay=False,
        ),
    ],
    *,
    draft_model: Annotated[
        str | None, typer.Option(help="Mine labels: tokens of this model that leave the target's answer as it is.")
    ] = None,
    answer: Annotated[str, typer.Option(help="A regular expression; the last match is a text's answer.")] = NUMBER,
    new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer, where labels are mined.")] = 256,
    wrong_weight: Annotated[
        float | None, typer.Option(min=1e-3, help="Weight of a wrong token over a right one's; by default balanced.")
    ] = None,
    decay: Annotated[float, typer.Option(min=0, help="Weight decay; higher judges more alike.")] = 1e-2,
    device: Device = "cpu",
) -> None:
    """Train a judge: a linear layer that says whether a drafted token is right, for the lossy method judge.

    The first token by which a wrong answer differs from the right one is the wrong token. With --draft-model, questions
    alone are given: a token that the draft model would write is wrong if the target's answer changes behind it. Give
    questions like those that the model is used for: a judge knows no others.
    """
    refuse_unwritable(out)
    try:
        re.compile(answer)
    except re.error as error:
        raise ValueError(f"{answer!r} is no regular expression (--answer): {error}") from None
    from mmspec.hosts.fingerprint import identity
    from mmspec.hosts.loading import load_model, load_tokenizer
    from mmspec_zoo.relaxed.judge import JudgeHead
    from mmspec_zoo.relaxed.judge_training import Judged, fitted, mined, rates, read_questions, read_triples, states_of

    tokenizer, reads = load_tokenizer(target), read_triples if draft_model is None else read_questions
    triples: Sequence[Any] = reads(data, tokenizer)
    model = load_model(target, device)
    small = None if draft_model is None else load_model(draft_model, device)
    held = triples[::HELD_OUT] if len(triples) >= HELD_OUT else []
    learnt = [triple for number, triple in enumerate(triples) if not held or number % HELD_OUT]

    def labelled(some: Sequence[Any]) -> Judged:
        return states_of(model, some) if small is None else mined(model, small, some, tokenizer, answer, new_tokens)

    judged = labelled(learnt)
    if not judged.right.any() or judged.right.all():
        raise ValueError(
            f"{len(judged.right)} tokens were tried, of which {int(judged.right.sum())} leave the answer as it is, and "
            "there have to be both kinds: give more questions, another draft model, or another pattern (--answer)"
        )
    typer.echo(f"training on {int(judged.right.sum()):,} right tokens and {int((~judged.right).sum()):,} wrong ones")
    weight, bias = fitted(judged, wrong_weight, decay)
    JudgeHead(weight, bias, target, identity(model)).save(out)
    for words, some in (("learnt", judged), *((("held out", labelled(held)),) if held else ())):
        shares = ", ".join(f"{name} {share:.1%}" for name, share in rates(some, weight, bias).items())
        typer.echo(f"{words}: {shares}")
