"""The target over a small key cache drafts for the target over the whole one (TriForce, arXiv 2404.11912).

There are three levels: a drafter without a model, the target's own weights over `budget` slots, the target. It is
faster if reading the cache dominates the cost of a pass: long texts, large models. On a short text the middle level is
the target itself, and nothing is gained.
Knobs: `budget` (more slots are accepted more often and cost more), `inner_k` (drafts for the middle level).
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.cascade import CascadeDrafter
from mmspec.core.protocols import Drafter, Target
from mmspec.hosts.budget import BudgetedTarget
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.prompt_lookup import PromptLookup
from mmspec_text.drafters.token_recycling import TokenRecycling
from mmspec_text.specs import CASCADE

_INNER: dict[str, type] = {"token-recycling": TokenRecycling, "prompt-lookup": PromptLookup}


@dataclass(frozen=True)
class CascadeOptions:
    """Options of `cascade`."""

    budget: Annotated[int, Field(ge=16)] = field(
        default=512, metadata={"help": "slots of the middle level's cache; more is closer to the target, and slower"}
    )
    sinks: Annotated[int, Field(ge=0)] = field(
        default=8, metadata={"help": "first slots of the text that always stay in it"}
    )
    inner: Literal["token-recycling", "prompt-lookup"] = field(
        default="token-recycling", metadata={"help": "what drafts for the middle level"}
    )
    inner_k: Annotated[int, Field(ge=0, le=64)] = field(
        default=3, metadata={"help": "units that are drafted for the middle level at once"}
    )


class Cascade(CascadeDrafter):
    """Drafts with a decoder over the target's own weights and a small cache.

    Args:
        options: The sizes of cache and drafts, and the inner drafter.
    """

    needs, offers = CASCADE.needs, CASCADE.offers
    example = "mmspec_text.example:cascade"

    def __init__(self, options: CascadeOptions = CascadeOptions()) -> None:
        self.options = options  # the decoder is built when the target is known

    def bind(self, target: Target) -> None:
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"cascade needs a key cache that it can cut down; {type(target).__name__} has none")
        middle = BudgetedTarget(target, self.options.budget, self.options.sinks)
        inner: Drafter = _INNER[self.options.inner]()
        super().__init__(Decoder(middle, inner, k=self.options.inner_k))
        super().bind(target)
