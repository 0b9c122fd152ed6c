"""What the text plugin offers. It imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmspec.registry import Component, hookimpl

if TYPE_CHECKING:
    import typer

TREES = frozenset({"discrete", "tree"})


@hookimpl
def mmspec_components() -> Iterator[Component]:
    """The target for transformers models, then drafters, then methods."""
    yield Component(
        name="transformers",
        kind="target",
        factory="mmspec.hosts.target:TransformersTarget",
        offers=frozenset({"discrete", "tree", "text", "grow", "truncate"}),
        summary="A decoder of transformers with key-value attention, images in its prompt too.",
    )
    yield from _drafters()
    yield from _methods()


def _drafters() -> Iterator[Component]:
    yield Component(
        name="prompt-lookup",
        kind="drafter",
        factory="mmspec_text.drafters.prompt_lookup:PromptLookup",
        needs=frozenset({"discrete"}),
        offers=frozenset({"chain"}),
        summary="Copies what followed the last occurrence of the latest n-gram; no model.",
        paper="https://github.com/apoorvumang/prompt-lookup-decoding",
        options="mmspec_text.drafters.prompt_lookup:PromptLookupOptions",
    )
    yield Component(
        name="draft-model",
        kind="drafter",
        factory="mmspec_text.drafters.draft_model:TextDraftModel",
        offers=frozenset({"chain", "q"}),
        summary="A smaller language model with the same vocabulary drafts a chain.",
        paper="https://arxiv.org/abs/2211.17192",
        options="mmspec_text.drafters.draft_model:DraftModelOptions",
    )


def _methods() -> Iterator[Component]:
    yield Component(
        name="plain",
        kind="method",
        exactness="invariant",
        summary="One unit a pass, no drafts: what every other method is compared with.",
    )
    yield Component(
        name="prompt-lookup",
        kind="method",
        drafter="prompt-lookup",
        rule="match",
        exactness="invariant",
        summary="Drafts copied from the text so far; good where the output repeats the input.",
        paper="https://github.com/apoorvumang/prompt-lookup-decoding",
    )
    yield Component(
        name="draft-model",
        kind="method",
        drafter="draft-model",
        rule="match",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Drafts by a smaller model that sees the target's own noise.",
        paper="https://arxiv.org/abs/2408.07978",
    )


@hookimpl(trylast=True)
def mmspec_target_for(model: object) -> str | None:
    """`transformers` for a live model that generates and has a config; plugins that know it better are asked first."""
    fits = hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "generate")
    return "transformers" if fits else None


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add `mmspec train text`."""
    from mmspec_text import commands

    commands.add(app)
