"""`mmspec generate text`, `demo text`, `train text`. Registering them imports nothing heavy; running them does."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import INTERRUPTED, group
from mmspec.cli.places import refuse_folders
from mmspec_text.bench.command import bench_text
from mmspec_text.generate import generate_text


def add(app: typer.Typer) -> None:
    """Add our command to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("text")(generate_text)
    group(app, "bench", "Measure speed, and what it costs: always against plain decoding.").command("text")(bench_text)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("text")(demo)
    group(app, "train", "Train the small models that mmspec ships.").command("text")(train_text)


def demo() -> None:
    """The shipped models write Python and Shakespeare, plainly and speculatively."""
    from mmspec_text.demo import demo_text

    demo_text()


def train_text(
    prose: Annotated[
        list[Path],
        typer.Option(help="Plain text beside the standard library; repeatable.", exists=True, dir_okay=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder that receives the finished models.")] = Path("assets"),
    cards: Annotated[Path, typer.Option(help="Folder that receives their model cards.")] = Path("model_cards"),
    work: Annotated[Path, typer.Option(help="Folder for checkpoints; delete it to start anew.")] = Path("runs/text"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the target.")] = None,
    drafter_steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of the drafter.")] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, …")] = "cpu",
) -> None:
    """Train a tokenizer, a small Llama and a drafter distilled from it; resumes where it stopped."""
    refuse_folders(out, cards, work)

    from mmspec_text.cards import write_all
    from mmspec_text.train import TextRecipe, train

    lengths = {"steps": steps, "drafter_steps": drafter_steps}
    recipe = TextRecipe(**{name: n for name, n in lengths.items() if n is not None})
    try:
        train(out, work, prose, recipe, device, typer.echo)
        write_all(out, cards)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The last checkpoint in {work} stays loadable; run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
