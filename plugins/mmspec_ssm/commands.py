"""The state-space plugin's commands. Registering them imports nothing heavy; running them does."""

from typing import Any

import typer

from mmspec.cli.groups import group
from mmspec.kits.text.bench.command import bench_command


def add(app: typer.Typer) -> None:
    """Add the commands to the groups that plugins share."""
    summary = "Compare methods, interleaved, with plain decoding and transformers' own; what rounds over trees cost."
    bench = bench_command(_subject, "mmspec/ssm-5m", summary)
    group(app, "bench", "Measure speed, and what it costs: always against plain decoding.").command("ssm")(bench)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("ssm")(demo)


def demo() -> None:
    """The shipped hybrid writes Python and Shakespeare, plainly and speculatively, over trees, too."""
    from mmspec.kits.text.bench.settings import DRAFTER
    from mmspec.kits.text.demo import METHODS, run_demo

    # A size of the tree that is given is not measured again in every call.
    run_demo("mmspec/ssm-5m", {**METHODS, "stree": {"drafter": DRAFTER, "k": 8, "nodes": 7}})


def _subject(model: str) -> Any:
    """What `mmspec bench ssm` measures."""
    from mmspec.kits.text.bench.settings import Subject
    from mmspec_ssm.bench import methods_of

    return Subject("ssm", model, methods_of(model))
