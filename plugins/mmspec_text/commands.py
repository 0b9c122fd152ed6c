"""The text plugin's commands. Registering them imports nothing heavy; running them does."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import group
from mmspec.kits.text.train_command import Cards, Device, Out, Prose, Work, run_training
from mmspec_text.bench.command import bench_text
from mmspec_text.generate import generate_text


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("text")(generate_text)
    group(app, "bench", "Measure speed, and what it costs: always against plain decoding.").command("text")(bench_text)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("text")(demo)
    group(app, "train", "Train the small models that mmspec ships.").command("text")(train_text)


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
    drafter_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the drafter.")] = None,
    device: Device = "cpu",
) -> None:
    """Train a tokenizer, a small Llama and a drafter distilled from it; resumes where it stopped."""

    def run() -> None:
        from mmspec.kits.text.cards import write_cards
        from mmspec_text.cards import SHIPPED
        from mmspec_text.train import TextRecipe, train

        lengths = {"steps": steps, "drafter_steps": drafter_steps}
        recipe = TextRecipe(**{name: n for name, n in lengths.items() if n is not None})
        train(out, work, prose, recipe, device, typer.echo)
        write_cards(SHIPPED, out, cards)

    run_training(run, work, out, cards)
