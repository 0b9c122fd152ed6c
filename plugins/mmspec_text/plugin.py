"""What the text plugin offers. It imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mmspec.registry import Component, hookimpl

if TYPE_CHECKING:
    import typer

DISCRETE = frozenset({"discrete"})


@hookimpl
def mmspec_components() -> Iterator[Component]:
    """The target for transformers models, then drafters, then methods."""
    yield Component(
        name="transformers",
        kind="target",
        factory="mmspec.hosts.target:TransformersTarget",
        offers=frozenset({"discrete", "tree", "text", "grow", "truncate"}),
        summary="A decoder of transformers with key-value attention, images in its prompt too.",
        pipeline="mmspec.kits.text.pipeline:TextPipeline",
    )
    yield from _drafters()
    yield from _methods()


def _drafters() -> Iterator[Component]:
    yield Component(
        name="prompt-lookup",
        kind="drafter",
        factory="mmspec_text.drafters.prompt_lookup:PromptLookup",
        needs=DISCRETE,
        offers=frozenset({"chain"}),
        summary="Copies what followed the last occurrence of the latest n-gram; no model.",
        paper="https://github.com/apoorvumang/prompt-lookup-decoding",
        options="mmspec_text.drafters.prompt_lookup:PromptLookupOptions",
    )
    yield Component(
        name="suffix",
        kind="drafter",
        factory="mmspec_text.drafters.suffix:Suffix",
        needs=DISCRETE,
        offers=frozenset({"chain"}),
        summary="What followed the longest suffix most often, in the text or a corpus; no model.",
        paper="https://arxiv.org/abs/2411.04975",
        options="mmspec_text.drafters.suffix:SuffixOptions",
    )
    yield Component(
        name="token-recycling",
        kind="drafter",
        factory="mmspec_text.drafters.token_recycling:TokenRecycling",
        needs=DISCRETE,
        offers=frozenset({"tree"}),
        summary="A tree of the successors that the target itself last ranked highest; no model.",
        paper="https://arxiv.org/abs/2408.08696",
        options="mmspec_text.drafters.token_recycling:TokenRecyclingOptions",
    )
    yield Component(
        name="lookup-recycling",
        kind="drafter",
        factory="mmspec_text.drafters.lookup_recycling:LookupRecycling",
        needs=DISCRETE,
        offers=frozenset({"tree"}),
        summary="Prompt lookup, and token recycling for rows where it finds nothing.",
        paper="https://arxiv.org/abs/2408.08696",
        options="mmspec_text.drafters.lookup_recycling:LookupRecyclingOptions",
    )
    yield Component(
        name="candidates",
        kind="drafter",
        factory="mmspec_text.drafters.candidates:TextCandidates",
        needs=DISCRETE,
        offers=frozenset({"chain"}),
        summary="transformers' own candidate generators, cross-tokenizer assistants too; one row.",
        paper="https://arxiv.org/abs/2502.05202",
        options="mmspec_text.drafters.candidates:CandidatesOptions",
    )
    yield Component(
        name="draft-model",
        kind="drafter",
        factory="mmspec_text.drafters.draft_model:TextDraftModel",
        offers=frozenset({"chain", "q"}),
        summary="A smaller language model drafts a chain; other tokenizers are mapped.",
        paper="https://arxiv.org/abs/2211.17192",
        options="mmspec_text.drafters.draft_model:DraftModelOptions",
    )
    yield Component(
        name="draft-tree",
        kind="drafter",
        factory="mmspec_text.drafters.draft_tree:TextDraftTree",
        offers=frozenset({"tree", "q"}),
        summary="A smaller language model drafts a tree: reranked, branching, or a beam.",
        paper="https://arxiv.org/abs/2406.16858",
        options="mmspec_text.drafters.draft_tree:DraftTreeOptions",
    )
    yield Component(
        name="cascade",
        kind="drafter",
        factory="mmspec_text.drafters.cascade:Cascade",
        needs=DISCRETE,
        offers=frozenset({"chain", "q"}),
        summary="The target itself over a small key cache drafts, and is drafted for in turn.",
        paper="https://arxiv.org/abs/2404.11912",
        options="mmspec_text.drafters.cascade:CascadeOptions",
    )


def _methods() -> Iterator[Component]:
    yield Component(
        name="auto",
        kind="method",
        drafter="lookup-recycling",
        exactness="invariant",
        summary="What a given draft model or the card calls for; else drafts without a model.",
    )
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
        exactness="invariant",
        summary="Drafts copied from the text so far; good where the output repeats the input.",
        paper="https://github.com/apoorvumang/prompt-lookup-decoding",
    )
    yield Component(
        name="suffix",
        kind="method",
        drafter="suffix",
        exactness="invariant",
        summary="Statistics of the text so far, of earlier calls and of a corpus of your own.",
        paper="https://arxiv.org/abs/2411.04975",
    )
    yield Component(
        name="token-recycling",
        kind="method",
        drafter="token-recycling",
        exactness="invariant",
        summary="A tree of recycled candidates; needs no model and gets better as it goes.",
        paper="https://arxiv.org/abs/2408.08696",
    )
    yield Component(
        name="draft-model",
        kind="method",
        drafter="draft-model",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Drafts by a smaller model that sees the target's own noise.",
        paper="https://arxiv.org/abs/2408.07978",
    )
    yield Component(
        name="draft-tree",
        kind="method",
        drafter="draft-tree",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="A smaller model's best nodes, expanded and reranked as in EAGLE-2.",
        paper="https://arxiv.org/abs/2406.16858",
    )
    yield Component(
        name="rsd",
        kind="method",
        drafter="draft-tree",
        rule="recursive-rejection",
        needs=frozenset({"text"}),
        exactness="lossless",
        defaults={"shape": "beam"},
        summary="Recursive speculative decoding: a stochastic beam, verified sibling by sibling.",
        paper="https://arxiv.org/abs/2402.14160",
    )
    yield Component(
        name="cascade",
        kind="method",
        drafter="cascade",
        needs=frozenset({"text"}),
        exactness="invariant",
        summary="Three levels, for long texts: no model, a small key cache, the whole one.",
        paper="https://arxiv.org/abs/2404.11912",
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


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    """The models of our cards."""
    from mmspec_text.cards import SHIPPED

    return SHIPPED
