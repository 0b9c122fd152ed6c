"""The hooks of the text plugin. Imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mmspec.registry import Spec, hookimpl
from mmspec_text.conditioned_specs import CONDITIONED_DRAFTERS, CONDITIONED_METHODS
from mmspec_text.head_specs import HEAD_DRAFTERS, HEAD_METHODS
from mmspec_text.infill_specs import ASSD, INFILL_METHODS, XLNET
from mmspec_text.long_text_specs import LONG_TEXT_DRAFTERS, LONG_TEXT_METHODS
from mmspec_text.overlap_specs import OVERLAP_DRAFTERS, OVERLAP_METHODS
from mmspec_text.relaxed_specs import RELAXED_METHODS, RELAXED_RULES
from mmspec_text.retrieval_specs import RETRIEVAL_DRAFTERS, RETRIEVAL_METHODS
from mmspec_text.self_drafting_specs import SELF_DRAFTERS, SELF_METHODS
from mmspec_text.sorted_specs import SORTED_DRAFTERS, SORTED_METHODS
from mmspec_text.specs import DRAFTERS, METHODS, TRANSFORMERS
from mmspec_text.vocabulary_specs import VOCABULARY_DRAFTERS, VOCABULARY_METHODS

if TYPE_CHECKING:
    import typer


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    """The targets for transformers models, then drafters, rules and methods."""
    drafters = (*DRAFTERS, *RETRIEVAL_DRAFTERS, *OVERLAP_DRAFTERS, *SELF_DRAFTERS, *HEAD_DRAFTERS)
    methods = (*METHODS, *RETRIEVAL_METHODS, *OVERLAP_METHODS, *SELF_METHODS, *HEAD_METHODS, *RELAXED_METHODS)
    more_drafters = (*LONG_TEXT_DRAFTERS, *SORTED_DRAFTERS, *CONDITIONED_DRAFTERS, *VOCABULARY_DRAFTERS, ASSD)
    more_methods = (*LONG_TEXT_METHODS, *SORTED_METHODS, *CONDITIONED_METHODS, *VOCABULARY_METHODS, *INFILL_METHODS)
    return (TRANSFORMERS, XLNET, *drafters, *more_drafters, *RELAXED_RULES, *methods, *more_methods)


@hookimpl(trylast=True)
def mmspec_target_for(model: object) -> str | None:
    """`transformers` for a live model that generates and has a config; plugins that know it better are asked first.

    XLNet is the exception: its own `generate` is no decoder's, and it can fill blanks.
    """
    if type(model).__name__ == "XLNetLMHeadModel":
        return "xlnet"
    fits = hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "generate")
    return "transformers" if fits else None


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add the commands of texts."""
    from mmspec_text import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    """The models of our cards."""
    from mmspec_text.cards import SHIPPED

    return SHIPPED


@hookimpl
def mmspec_bench_shapes() -> Iterable[Any]:
    """The shapes of `mmspec bench core`."""
    from mmspec_text.shapes import SHAPES

    return SHAPES
