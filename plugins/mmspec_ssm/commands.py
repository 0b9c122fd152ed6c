"""The state-space plugin's commands. Registering them imports nothing heavy; running them does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.bench import one_shape_command
from mmspec.cli.groups import group
from mmspec.kits.text.bench.command import bench_command, one_shape
from mmspec.kits.text.train_command import Cards, Device, Out, Prose, Work, run_training


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    summary = "Compare methods, interleaved, with plain decoding and transformers' own; what rounds over trees cost."
    bench = bench_command(_subject, "mmspec/ssm-5m", summary)
    group(app, "bench", "Measure speed, and what it costs: always against plain decoding.").command("ssm")(bench)
    one_shape_command.add(app, "ssm", one_shape(_one_shape_methods, "mmspec/ssm-5m"))
    group(app, "demo", "Run every demo, or one.", run_all=True).command("ssm")(demo)
    group(app, "train", "Train drafters, and the small models that mmspec ships.").command("ssm")(train_ssm)


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
    from mmspec_ssm.cards import SHIPPED
    from mmspec_ssm.train import SsmRecipe, train

    options = {"steps": steps, "hard": hard}
    recipe = SsmRecipe(**{name: value for name, value in options.items() if value is not None})
    run_training(train, recipe, prose, work, out, cards, device, SHIPPED)


def _subject(model: str) -> Any:
    """What `mmspec bench ssm` measures."""
    from mmspec.kits.text.bench.settings import Subject
    from mmspec_ssm.bench.rounds import rounds
    from mmspec_ssm.bench.settings import methods_of

    return Subject("ssm", model, methods_of(model), by_nodes=rounds)


def _one_shape_methods(model: str) -> Mapping[str, Any]:
    """What `mmspec bench one-shape ssm` compares with plain decoding; STree's tree has one size on every machine."""
    from mmspec_ssm.bench.settings import ONE_SHAPE

    return ONE_SHAPE
