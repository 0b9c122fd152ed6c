"""The text plugin's commands. Registering them imports nothing heavy; running them does."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.bench import one_shape_command
from mmspec.bench.core.command import core
from mmspec.bench.core.plan import plan
from mmspec.cli.groups import group
from mmspec.kits.text.bench.command import bench_command, one_shape
from mmspec.kits.text.bench.diversity_command import diversity
from mmspec.kits.text.train_command import Cards, Device, Out, Prose, Work, run_training
from mmspec_text.chat import chat
from mmspec_text.generate import generate_text
from mmspec_text.training.command import train_drafter
from mmspec_text.training.judge_command import train_judge
from mmspec_text.view.command import view_text

if TYPE_CHECKING:
    from mmspec_text.training.recipe import DrafterKind

SHIPPED_HEADS: "dict[DrafterKind, str]" = {
    "eagle3": "the EAGLE-3 head",
    "mtp": "the multi-token layer",
    "medusa": "the Medusa heads",
}
"""The kinds of head that ship, in words."""


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("text")(generate_text)
    summary = "Compare methods, interleaved, with plain decoding and transformers' own ways, on code and prose."
    bench = bench_command(_subject, "mmspec/text-14m", summary)
    benches = group(app, "bench", "Measure speed, and what it costs: always against plain decoding.")
    benches.command("text")(bench)
    benches.command("core")(core)
    benches.command("diversity")(diversity(_diverse_methods, "mmspec/text-14m"))
    app.command("plan")(plan)
    app.command("chat")(chat)
    group(app, "view", "Watch decoding in the browser.").command("text")(view_text)
    one_shape_command.add(app, "text", one_shape(_one_shape_methods, "mmspec/text-14m"))
    group(app, "demo", "Run every demo, or one.", run_all=True).command("text")(demo)
    trains = group(app, "train", "Train drafters, and the small models that mmspec ships.")
    trains.command("text")(train_text)
    for kind, words in SHIPPED_HEADS.items():
        trains.command(f"text-{kind}")(head_command(kind, words))
    trains.command("drafter")(train_drafter)
    trains.command("judge")(train_judge)


def demo() -> None:
    """The shipped models write Python and Shakespeare, plainly and speculatively."""
    from mmspec.kits.text.demo import run_demo

    run_demo("mmspec/text-14m")


def train_text(
    prose: Prose,
    out: Out = Path("assets"),
    cards: Cards = Path("model_cards"),
    work: Work = Path("runs/text"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the target.")] = None,
    whole_steps: Annotated[int | None, typer.Option(min=1, help="Its steps on sequences of full length.")] = None,
    drafter_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the drafter.")] = None,
    device: Device = "cpu",
) -> None:
    """Train a tokenizer, a small Llama and a drafter distilled from it; resumes where it stopped."""
    from mmspec_text.cards import MODELS
    from mmspec_text.train import TextRecipe, train

    lengths = {"steps": steps, "whole_steps": whole_steps, "drafter_steps": drafter_steps}
    recipe = TextRecipe(**{name: n for name, n in lengths.items() if n is not None})
    run_training(train, recipe, prose, work, out, cards, device, MODELS)


def head_command(kind: "DrafterKind", words: str) -> Callable[..., None]:
    """The command that trains a shipped head.

    Args:
        kind: The kind of head.
        words: What it is called, in words.
    """

    def train_head(
        prose: Prose,
        target: Annotated[str, typer.Option(help="A shipped language model.")] = "mmspec/text-14m",
        out: Out = Path("assets"),
        cards: Cards = Path("model_cards"),
        work: Work = Path(f"runs/text-{kind}"),
        steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
        device: Device = "cpu",
    ) -> None:
        from mmspec_text.cards import HEADS
        from mmspec_text.training.shipped import name_of, recipe_of, train_shipped_head

        recipe = recipe_of(target, kind)
        recipe = recipe if steps is None else replace(recipe, steps=steps)
        train = partial(train_shipped_head, kind=kind, target=target)
        shipped = [head for head in HEADS if head.name == name_of(target, kind)]
        run_training(train, recipe, prose, work, out, cards, device, shipped)

    train_head.__doc__ = f"Train {words} of a shipped model on what it learned, and wrote; resumes where it stopped."
    return train_head


def _subject(model: str) -> Any:
    """What `mmspec bench text` measures."""
    from mmspec.kits.text.bench.settings import Subject
    from mmspec_text.bench import methods_of

    return Subject("text", model, methods_of(model))


def _one_shape_methods(model: str) -> dict[str, Any]:
    """What `mmspec bench one-shape text` compares with plain decoding: every method whose output is plain's."""
    from mmspec_text.bench import methods_of

    return {name: how for name, how in methods_of(model).items() if name != "rsd" and "compile" not in how}


def _diverse_methods() -> Mapping[str, Mapping[str, Any]]:
    """What `mmspec bench diversity` compares with plain decoding."""
    from mmspec_text.bench import DIVERSITY

    return DIVERSITY
