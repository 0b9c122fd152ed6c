"""The target over a small key cache drafts for the target over the whole one (TriForce, arXiv 2404.11912).

There are three levels: a draft model over a streaming cache (`mmspec_text.drafters.streamed`) or a drafter without a
model, the target's own weights over `budget` slots, the target. It is faster if reading the cache dominates the cost of
a pass: long texts, large models. On a short text the middle level is the target itself, and nothing is gained.

`cache` says which slots the middle level has. `streaming`: the first and the latest ones (StreamingLLM, arXiv
2309.17453). `retrieval`, the paper's own (the method `triforce`): the chunks of the text that the last unit of the
prompt looks at most, in every layer and for every head, and all that was generated since (the steps:
`mmspec.hosts.budget`). The paper's lowest level is a small model, which is given as `drafter`.

Guarantee: under `match` the output is plain decoding's, whatever the cache holds.
Knobs: `budget` (more slots are accepted more often and cost more), `inner_k` (drafts for the middle level), `chunk`
(larger chunks are found by fewer scores, and chosen more coarsely), `renew` (fewer rounds follow the text more closely,
and cost a pass of the target each time).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.cascade import CascadeDrafter
from mmspec.core.protocols import Drafter, Target
from mmspec.hosts.budget import BudgetedTarget, Retrieval
from mmspec.hosts.devices import device_of
from mmspec.hosts.draft_models import drafting_target, refuse_other_tokenizer
from mmspec.hosts.target import TransformersTarget
from mmspec.registry.options import option
from mmspec_text.drafters.prompt_lookup import PromptLookup
from mmspec_text.drafters.streamed import Streamed
from mmspec_text.drafters.token_recycling import TokenRecycling
from mmspec_text.specs import CASCADE

_INNER: dict[str, type] = {"token-recycling": TokenRecycling, "prompt-lookup": PromptLookup}


@dataclass(frozen=True)
class CascadeOptions:
    """Options of `cascade`."""

    budget: Annotated[int, Field(ge=16)] = option(
        512, "slots of the middle level's cache; more is closer to the target, and slower"
    )
    cache: Literal["streaming", "retrieval"] = option(
        "streaming", "what it holds: the first and the latest slots, or chunks that the prompt's last unit sees"
    )
    sinks: Annotated[int, Field(ge=0)] = option(8, "streaming: first slots of the text that always stay in it")
    chunk: Annotated[int, Field(ge=1, le=64)] = option(
        8, "retrieval: slots that are scored and kept together; more is coarser"
    )
    renew: Annotated[int, Field(ge=0)] = option(
        0, "retrieval: rounds until chunks are chosen anew, which costs a pass; 0: never"
    )
    model: Any = option(None, "the lowest level: a shipped name, a folder, a hub name or a live model; None: `inner`")
    draft_budget: Annotated[int, Field(ge=32)] = option(256, "slots of that model's streaming cache")
    draft_sinks: Annotated[int, Field(ge=0)] = option(16, "first slots of the text that always stay in it")
    inner: Literal["token-recycling", "prompt-lookup"] = option(
        "token-recycling", "what drafts for the middle level without a model"
    )
    inner_k: Annotated[int, Field(ge=0, le=64)] = option(3, "units that are drafted for the middle level at once")


class Cascade(CascadeDrafter):
    """Drafts with a decoder over the target's own weights and a small cache."""

    needs, offers = CASCADE.needs, CASCADE.offers

    def __init__(self, options: CascadeOptions = CascadeOptions()) -> None:
        self.options = options  # the decoder is built when the target is known
        self.small = None if options.model is None else drafting_target(options.model)

    def bind(self, target: Target) -> None:
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"cascade needs a key cache that it can cut down; {type(target).__name__} has none")
        options = self.options
        retrieval = Retrieval(options.chunk, options.renew) if options.cache == "retrieval" else None
        middle = BudgetedTarget(target, options.budget, options.sinks, retrieval)
        inner: Drafter = _INNER[options.inner]()
        if self.small is not None:
            refuse_other_tokenizer(self.small, target)
            self.small.model.to(device_of(target.model))
            inner = Streamed(self.small, options.draft_budget, options.draft_sinks)
        super().__init__(Decoder(middle, inner, k=options.inner_k))
        super().bind(target)
