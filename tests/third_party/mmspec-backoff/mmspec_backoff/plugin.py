"""The offer of this plugin: a drafter, two methods, a command. This module imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmspec.authors import DrafterSpec, MethodSpec, hookimpl

if TYPE_CHECKING:
    import typer


BACKOFF = DrafterSpec(
    name="backoff",
    factory="mmspec_backoff.drafter:Backoff",
    needs={"discrete"},
    offers={"chain"},
    summary="n-grams of the text so far, the longest that was seen often enough.",
    paper="https://ieeexplore.ieee.org/document/1165125",
    options="mmspec_backoff.drafter:BackoffOptions",
)


@hookimpl
def mmspec_components() -> Iterator[DrafterSpec | MethodSpec]:
    """The drafter, and two ways to use it."""
    yield BACKOFF
    yield MethodSpec(
        name="backoff", drafter="backoff", exactness="invariant", summary="Drafts by back-off n-grams; rule match."
    )
    yield MethodSpec(
        name="backoff-bold",
        drafter="backoff",
        exactness="invariant",
        defaults={"order": 1},
        summary="Drafts by bigrams, which are found nearly always; rule match.",
    )


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add `mmspec backoff`."""
    from mmspec_backoff.command import backoff

    app.command("backoff")(backoff)
