"""The state-space plugin's commands. Registering them imports nothing heavy; running them does."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import group
from mmspec.kits.text.train_command import Cards, Device, Out, Prose, Work, run_training
from mmspec_ssm.bench.command import bench_ssm


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    group(app, "bench", "Measure speed, and what it costs: always against plain decoding.").command("ssm")(bench_ssm)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("ssm")(demo)
    group(app, "train", "Train the small models that mmspec ships.").command("ssm")(train_ssm)


def demo() -> None:
    """The shipped hybrid writes Python and Shakespeare, plainly and speculatively, over trees, too."""
    from mmspec.kits.text.bench.settings import DRAFTER
    from mmspec.kits.text.demo import METHODS, run_demo

    run_demo("mmspec/ssm-5m", {**METHODS, "stree": {"drafter": DRAFTER}})


def train_ssm(
    prose: Prose,
    out: Out = Path("assets"),
    cards: Cards = Path("model_cards"),
    work: Work = Path("runs/ssm"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    hard: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the next-token loss; 1 does without the teacher.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Train a small hybrid of Mamba-2 and attention, distilled from the text target; resumes where it stopped."""

    def run() -> None:
        from mmspec.kits.text.cards import write_cards
        from mmspec_ssm.cards import SHIPPED
        from mmspec_ssm.train import SsmRecipe, train

        options = {"steps": steps, "hard": hard}
        recipe = SsmRecipe(**{name: value for name, value in options.items() if value is not None})
        train(out, work, prose, recipe, device, typer.echo)
        write_cards(SHIPPED, out, cards)

    run_training(run, work, out, cards)
