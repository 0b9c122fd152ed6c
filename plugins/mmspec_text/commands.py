"""The text plugin's commands. Registering them imports nothing heavy; running them does."""

from typing import Any

import typer

from mmspec.bench.core.command import core, plan
from mmspec.cli.groups import group
from mmspec.kits.text.bench.command import bench_command
from mmspec_text.chat import chat
from mmspec_text.generate import generate_text
from mmspec_text.training.command import train_drafter
from mmspec_text.training.judge_command import train_judge
from mmspec_text.view.command import view_text


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    group(app, "generate", "Generate, speculatively.").command("text")(generate_text)
    summary = "Compare methods, interleaved, with plain decoding and transformers' own ways, on code and prose."
    bench = bench_command(_subject, "mmspec/text-14m", summary)
    benches = group(app, "bench", "Measure speed, and what it costs: always against plain decoding.")
    benches.command("text")(bench)
    benches.command("core")(core)
    app.command("plan")(plan)
    app.command("chat")(chat)
    group(app, "view", "Watch decoding in the browser.").command("text")(view_text)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("text")(demo)
    trains = group(app, "train", "Train drafters for models of yours.")
    trains.command("drafter")(train_drafter)
    trains.command("judge")(train_judge)


def demo() -> None:
    """The shipped models write Python and Shakespeare, plainly and speculatively."""
    from mmspec.kits.text.demo import run_demo

    run_demo("mmspec/text-14m")


def _subject(model: str) -> Any:
    """What `mmspec bench text` measures."""
    from mmspec.kits.text.bench.settings import Subject
    from mmspec_text.bench import methods_of

    return Subject("text", model, methods_of(model))
