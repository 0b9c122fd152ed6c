"""The hooks of the zoo. Imports no torch; the factories do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.registry import answering, hookimpl

if TYPE_CHECKING:
    import typer

mmspec_components = answering("mmspec_zoo.specs:COMPONENTS")


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """`xlnet` for a live XLNet: its own `generate` is no decoder's, and it can fill blanks."""
    return "xlnet" if type(model).__name__ == "XLNetLMHeadModel" else None


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add `mmspec train judge`."""
    from mmspec.cli.groups import group
    from mmspec_zoo.relaxed.judge_command import train_judge

    group(app, "train", "Train drafters for models of yours.").command("judge")(train_judge)
