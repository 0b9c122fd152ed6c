"""The offer of this plugin: a command. Its model is one of transformers, for which mmspec has a target already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.authors import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add `mmspec pose`."""
    from mmspec_pose.command import pose

    app.command("pose")(pose)
