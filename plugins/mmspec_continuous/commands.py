"""The continuous plugin's commands. Registering them imports nothing heavy."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.bench.command import pipeline_command
from mmspec.cli.groups import group
from mmspec.kits.pictures import command as kit

MODEL = "mmspec/emoji-continuous"
ROWS: dict[str, dict[str, Any]] = {"plain": {}, "reflection": {"k": 16}}
CAPTIONS = ("police officer skin 4", "princess skin 4", "smiling face with sunglasses")
GUIDANCE = 3.0


def add(app: typer.Typer) -> None:
    summary = "Draw a picture of continuous tokens, speculatively; a lossless method keeps the plain distribution."
    generate = kit.generate_command("token", MODEL, summary)
    group(app, "generate", "Generate, speculatively.").command("continuous")(generate)
    summary = "Compare methods, interleaved, with plain decoding: how fast pictures of tokens are drawn."
    bench = pipeline_command(partial(kit.modality, "continuous", "token"), MODEL, 32, 16, summary)
    group(app, "bench", "Measure speed, and what it costs.").command("continuous")(bench)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("continuous")(demo_continuous)


def demo_continuous(
    out: Annotated[Path, typer.Option("--out", "-o", help="The sheet; its ending says the format.")] = Path(
        "demo-output/continuous.png"
    ),
) -> None:
    """Draw emoji of continuous tokens: one distribution, a row for each method."""
    from mmspec.kits.pictures.demo import demonstrate

    demonstrate(MODEL, ROWS, CAPTIONS, GUIDANCE, out)
