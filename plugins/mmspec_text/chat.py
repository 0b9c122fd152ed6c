"""`mmspec chat MODEL`: a conversation in the terminal. CTRL-C ends an answer; `/exit` or CTRL-D leaves."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.arguments import Device, Drafted, Drafter, Dtype, Method, Options, PolicyName, RuleName, refuse_method
from mmspec.cli.places import text_of
from mmspec.packaged import MODELS
from mmspec.registry.suggest import unknown

if TYPE_CHECKING:
    from mmspec.core.report import Report
    from mmspec.kits.text.pipeline import TextStream

HELP, LEAVE = "/help", ("/exit", "/quit")
"""The words that are for the command and not for the model."""


def chat(
    model: Annotated[str, typer.Argument(help="A model with a chat template: a folder, or a hub name.")],
    *,
    method: Method = "auto",
    drafter: Drafter = None,
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    policy: PolicyName = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the first question.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Most tokens of an answer.")] = 512,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy; default: what a fetched model's authors use, else 0.7.")
    ] = None,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(min=0.01, help="Higher repeats less; 1 changes nothing.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the first answer; the others count on.")] = 0,
    learn: Annotated[
        bool, typer.Option("--learn", help="Let a drafter with a network learn from the answers, while you read.")
    ] = False,
    chat_template: Annotated[Path | None, typer.Option(help="A Jinja file in place of the model's template.")] = None,
    opt: Options = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Talk to a model, speculatively; the answers are the plain ones for these seeds."""
    refuse_method(method)
    template = None if chat_template is None else text_of(chat_template)
    from transformers.utils import logging

    from mmspec.core.learning import Learning
    from mmspec.core.report import Report
    from mmspec.hosts.loading import load_tokenizer
    from mmspec.kits.text.language import refuse_no_template
    from mmspec.kits.text.pipeline import TextPipeline
    from mmspec.registry.options import parse

    logging.disable_progress_bar()
    options, tokenizer = parse(opt or []), load_tokenizer(model)
    tokenizer.chat_template = tokenizer.chat_template if template is None else template
    refuse_no_template(tokenizer)
    how = dict(drafter=drafter, rule=rule, k=num_speculative_tokens, policy=policy, tokenizer=tokenizer)
    pipe = TextPipeline.from_pretrained(model, device=device, dtype=dtype, method=method, **how, **options)
    if learn:
        pipe.learn(Learning(idle=True))
    messages = [] if system is None else [{"role": "system", "content": system}]
    if temperature is None:
        temperature = MODELS[model].temperature if model in MODELS else 0.7
    sampling: dict[str, Any] = dict(temperature=temperature, top_p=top_p, repetition_penalty=repetition_penalty)
    reports = list[Report]()
    typer.echo(f"({HELP} says what there is)", err=True)
    for turn, question in enumerate(iter(_asked, None)):
        messages.append({"role": "user", "content": question})
        answer: Any = pipe(messages, max_new_tokens, seed=seed + turn, stream=True, **sampling)
        messages.append({"role": "assistant", "content": _shown(answer, reports)})
    if pipe.learner is not None:
        pipe.learner.rest(lessons=False)
        typer.echo(f"(the drafter took {pipe.learner.steps} steps while it learnt)", err=True)
    if reports:
        typer.echo(str(Report.total(reports)), err=True)


def _asked() -> str | None:
    """The next question; None at the end of the conversation."""
    while True:
        try:
            said = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return None
        if said in LEAVE:
            return None
        if said == HELP:
            typer.echo(f"{', '.join(LEAVE)} or CTRL-D: leave · CTRL-C: end an answer · else: what you say to the model")
        elif re.match(r"/\w*(\s|$)", said):  # a path, /usr/bin, is no command
            typer.echo(unknown("command", said.split()[0], (HELP, *LEAVE)))
        elif said:
            return said


def _shown(answer: "TextStream[Any]", reports: "list[Report]") -> str:
    """Print an answer as it comes, and return it; CTRL-C ends it where it is."""
    text = ""
    try:
        for piece in answer:
            typer.echo(piece, nl=False)
            text += piece
    except KeyboardInterrupt:
        answer.close()
        typer.echo("\n(stopped)")
        return text
    typer.echo()
    assert answer.output is not None, "the stream has ended"
    report = answer.output.report
    reports.append(report)
    spent = sum(report.seconds.values())
    typer.echo(f"({report.emitted} tokens in {report.rounds} passes, {report.emitted / spent:.0f} a second)", err=True)
    return text
