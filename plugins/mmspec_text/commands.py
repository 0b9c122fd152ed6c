"""The text plugin's commands. Registering them imports nothing heavy; running them does."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.bench.methods import counted_or_read
from mmspec.cli.arguments import Device, Drafted, Drafter, Dtype, Method, Options, PolicyName, RuleName, refuse_method
from mmspec.cli.groups import INTERRUPTED, group
from mmspec.kits.text.bench.command import bench_command
from mmspec_text.chat import chat
from mmspec_text.plan.command import plan
from mmspec_text.training.command import train_drafter
from mmspec_text.view.command import view_text

_REAL = "smollm2"
_QUESTIONS = (
    ("SmolLM2 programs", "Write a Python class for a stack, with a docstring for every method.", 0.0),
    ("SmolLM2 answers", "What is the capital of France, and what is it known for?", 0.7),
)
"""The demo's questions to a real model, as title, question and temperature."""


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("text")(generate_text)
    summary = "Compare methods, interleaved, with plain decoding and transformers' own ways, on code and prose."
    bench = bench_command(_subject, "mmspec/text-14m", summary)
    group(app, "bench", "Measure speed, and what it costs: always against plain decoding.").command("text")(bench)
    app.command("plan")(plan)
    app.command("chat")(chat)
    app.command("tune")(tune)
    group(app, "view", "Watch decoding in the browser.").command("text")(view_text)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("text")(demo)
    group(app, "train", "Train drafters for models of yours.").command("drafter")(train_drafter)


def demo() -> None:
    """SmolLM2 answers questions, where `mmspec fetch smollm2` brought it; else a shipped model writes Python and
    Shakespeare. Plainly and speculatively.
    """
    from mmspec.kits.text.demo import run_demo
    from mmspec.packaged import cache

    if (cache() / _REAL).is_dir():
        run_demo(_REAL, {"plain": {}, "auto": {}}, _QUESTIONS)
    else:
        run_demo("mmspec/text-14m")
        typer.echo(f"\nwith a real model, which answers questions: mmspec fetch {_REAL}, and mmspec demo text again")


def _subject(model: str) -> Any:
    """The subject of `mmspec bench text`."""
    from mmspec.kits.text.bench.settings import Subject
    from mmspec_text.bench import methods_of

    return Subject("text", model, methods_of(model))


def generate_text(
    prompt: Annotated[str, typer.Argument(help="What to continue.")],
    *,
    model: Annotated[
        str, typer.Option(help="A shipped model (mmspec/…), a folder, or a hub name.")
    ] = "mmspec/text-14m",
    method: Method = "auto",
    drafter: Drafter = None,
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    policy: PolicyName = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=1_000_000)] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of torch's generator.")] = 0,
    opt: Options = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Continue a text, speculatively; the output is the plain output for that seed."""
    refuse_method(method)
    import torch
    from transformers import TextStreamer
    from transformers.utils import logging

    import mmspec
    from mmspec.hosts.devices import dtype_of
    from mmspec.hosts.loading import load_model, load_tokenizer
    from mmspec.registry.options import parse

    if not prompt:
        raise ValueError("the prompt is empty; give some text to continue")
    logging.disable_progress_bar()  # loading takes a moment, and its bar would stand in the way of the text
    options = parse(opt or [])
    ours = model.startswith("mmspec/")  # of another model our own would have another tokenizer
    if drafter is None and ours and method in ("draft-model", "draft-tree", "rsd") and "model" not in options:
        drafter = "mmspec/text-1m"
    live = load_model(model, device, dtype_of(dtype))
    tokenizer = load_tokenizer(model)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False).to(device)
    streamer = TextStreamer(tokenizer)
    drawn: dict[str, Any] = {"do_sample": bool(temperature)}
    drawn |= {"temperature": temperature, "top_k": top_k, "top_p": top_p} if temperature else {}
    how: dict[str, Any] = dict(drafter=drafter, rule=rule, k=num_speculative_tokens, policy=policy)
    with mmspec.enable(live, method, **how, **options) as spec:
        torch.manual_seed(seed)
        try:
            live.generate(**inputs, max_new_tokens=max_new_tokens, streamer=streamer, **drawn)
        except KeyboardInterrupt:
            streamer.end()  # it holds back the last word until it is sure of it
            typer.echo("\n(stopped; this is what there is)")
            raise typer.Exit(INTERRUPTED) from None
    typer.echo("\n".join(line for line in (spec.why, str(spec.report)) if line), err=True)


def tune(
    model: Annotated[str, typer.Argument(help="A language model: a folder, a hub name, or one of `mmspec fetch`.")],
    *,
    prompts: Annotated[
        Path | None, typer.Option(help='Prompts like those that you will ask: {"prompt": "…"} a line.')
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="About how long it may take.")] = 10.0,
    new_tokens: Annotated[int, typer.Option(min=16, max=4096, help="Most tokens of an output.")] = 96,
    compile: Annotated[bool, typer.Option(help="Try compiled rounds, too; the first of a kind takes minutes.")] = False,
    beside: Annotated[bool, typer.Option(help="Keep the result in the model's own folder.")] = False,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Measure which method is fastest for a model here; `auto` takes it from then on, in `enable`, `chat`, `serve`.

    All ways decode all prompts, by turns; those that clearly lose leave early. Where the seconds do not tell who is
    faster, nothing is kept.
    """
    own = None if prompts is None else counted_or_read(str(prompts), chats=True)[1]
    from transformers.utils import logging

    from mmspec.api.tuned import write
    from mmspec.hosts.devices import dtype_of
    from mmspec.hosts.draft_models import own_target
    from mmspec.hosts.loading import load_model, load_tokenizer, locate
    from mmspec.kits.text import tuning
    from mmspec.kits.text.language import asked, encoded
    from mmspec.report.terminal import table, terminal

    folder = Path(locate(model))
    if beside and not folder.is_dir():
        raise ValueError(f"{model!r} is no folder here: leave out --beside, and the result is kept in your cache")
    logging.disable_progress_bar()
    live, tokenizer = load_model(model, device, dtype_of(dtype)), load_tokenizer(model)
    given = [encoded(asked(each, tokenizer), tokenizer) for each in (tuning.PROMPTS if own is None else own)]
    tasks = [{name: value.to(device) for name, value in each.items()} for each in given]
    context = own_target(live).context
    long = [i for i, task in enumerate(tasks) if context and task["input_ids"].shape[1] + new_tokens > context]
    if long:
        raise ValueError(
            f"prompt {long[0]} has {tasks[long[0]]['input_ids'].shape[1]:,} tokens, and the model's context of "
            f"{context:,} has no room for {new_tokens} more"
        )
    typer.echo(f"{len(tasks)} prompts, at most about {minutes:g} minutes", err=True)
    made, said, race = tuning.tune(live, tasks, minutes, new_tokens, compile, partial(typer.echo, err=True))
    table(terminal(), ("way", "speed over plain", "units a pass", "runs"), list(tuning.ranked(race)), whole={"way"})
    typer.echo(f"\n{said}")
    if made is not None:
        typer.echo(f"The file {write(made, folder if beside else None)} says so; delete it to undo that.")
