"""The continuous plugin's commands. Registering them imports nothing heavy."""

from typing import Any

import typer

from mmspec.bench.command import pipeline_command
from mmspec.cli.groups import group
from mmspec_continuous.demo import demo_continuous
from mmspec_continuous.generate import generate_continuous


def add(app: typer.Typer) -> None:
    """Add our commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("continuous")(generate_continuous)
    summary = "Compare methods, interleaved, with plain decoding: how fast pictures of tokens are drawn."
    bench = pipeline_command(_pictures, "mmspec/emoji-continuous", 32, 16, summary)
    group(app, "bench", "Measure speed, and what it costs.").command("continuous")(bench)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("continuous")(demo_continuous)


def _pictures() -> Any:
    """What `mmspec bench continuous` measures."""
    from mmspec.kits.pictures.bench import pictures

    return pictures("continuous", "token")
