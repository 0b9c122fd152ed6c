"""`mmspec tune MODEL`: which method pays on this machine, for `auto` to take from then on."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.bench.methods import counted_or_read
from mmspec.cli.arguments import Device, Dtype

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and an example.",
    "Summarise in two sentences: The printing press spread through Europe within decades. Books became cheap, so that "
    "more people learnt to read, and ideas that a few scholars had kept to themselves were argued about in taverns.",
    "Tom has 3 boxes of 12 pencils and gives 7 pencils away. How many pencils are left? Explain step by step.",
    "Translate into French: Good morning, my friends. Where is the next train station?",
    "Rewrite this with better names: def f(a, b):\n    c = []\n    for d in a:\n        if d not in b:\n"
    "            c.append(d)\n    return c",
)
"""Prompts where the user has no file."""


def tune(
    model: Annotated[str, typer.Argument(help="A language model: a folder, a hub name, or one of `mmspec fetch`.")],
    *,
    prompts: Annotated[
        Path | None, typer.Option(help='Prompts like those that you will ask: {"prompt": "…"} a line.')
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="About how long it may take.")] = 10.0,
    new_tokens: Annotated[int, typer.Option(min=8, max=4096, help="Tokens of every output.")] = 96,
    compile: Annotated[bool, typer.Option(help="Try compiled rounds, too; the first of a kind takes minutes.")] = False,
    beside: Annotated[bool, typer.Option(help="Keep the result in the model's own folder.")] = False,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Measure which method is fastest for a model here; `auto` takes it from then on, in `enable`, `chat`, `serve`."""
    own = None if prompts is None else counted_or_read(str(prompts))[1]
    from transformers.utils import logging

    from mmspec.api.tuned import write
    from mmspec.hosts.dtypes import dtype_of
    from mmspec.hosts.loading import load_model, load_tokenizer, locate
    from mmspec.kits.text import tuning
    from mmspec.kits.text.language import encoded
    from mmspec.report.result import PLAIN
    from mmspec.report.terminal import table, terminal

    folder = Path(locate(model))
    if beside and not folder.is_dir():
        raise ValueError(f"{model!r} is no folder here: leave out --beside, and the result is kept in your cache")
    logging.disable_progress_bar()
    live, tokenizer = load_model(model, device, dtype_of(dtype)), load_tokenizer(model)
    asked = list(PROMPTS if own is None else own)
    asks = tokenizer.chat_template is not None
    given = [[{"role": "user", "content": text}] if asks else text for text in asked]
    tasks = [{name: value.to(device) for name, value in encoded(each, tokenizer).items()} for each in given]
    context = live.config.get_text_config().max_position_embeddings
    long = [i for i, task in enumerate(tasks) if task["input_ids"].shape[1] + new_tokens > context]
    if long:
        raise ValueError(
            f"prompt {long[0]} has {tasks[long[0]]['input_ids'].shape[1]:,} tokens, and the model's context of "
            f"{context:,} has no room for {new_tokens} more"
        )
    typer.echo(f"{len(tasks)} prompts, at most about {minutes:g} minutes", err=True)
    made, racers = tuning.tune(live, tasks, minutes, new_tokens, compile)
    table(
        terminal(), ("way", "speed over plain", "units a pass", "prompts"), list(tuning.ranked(racers)), whole={"way"}
    )
    file = write(made, folder if beside else None)
    said = "Nothing pays here: auto decodes plainly." if made.method == PLAIN else f"auto takes {made.method} now."
    typer.echo(f"\n{said} The file {file} says so; delete it to undo that.")
