"""Prompt lookup, and token recycling for rows where it finds nothing: no model and no training.

Saxena's prompt lookup (`prompt_lookup.py`) and token recycling (arXiv 2408.08696, `token_recycling.py`). A copy is long
and often right; a tree of successors is always available.
Guarantee and knobs: those of the two.
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from mmspec_text.drafters.prompt_lookup import PromptLookup, PromptLookupOptions
from mmspec_text.drafters.token_recycling import TokenRecycling, TokenRecyclingOptions
from mmspec_text.drafters.two_drafters import Fallback


@dataclass(frozen=True)
class LookupRecyclingOptions(TokenRecyclingOptions):
    """Options of `lookup-recycling`: those of `token-recycling`, and of the lookup."""

    max_ngram: Annotated[int, Field(ge=1, le=32)] = field(
        default=4, metadata={"help": "longest n-gram that is looked for"}
    )
    min_ngram: Annotated[int, Field(ge=1, le=32)] = field(
        default=2, metadata={"help": "shortest n-gram that is copied from; shorter ones leave it to recycling"}
    )

    def __post_init__(self) -> None:
        self.lookup()

    def lookup(self) -> PromptLookupOptions:
        """The options of prompt lookup, checked."""
        return PromptLookupOptions(max_ngram=self.max_ngram, min_ngram=self.min_ngram)


class LookupRecycling(Fallback):
    """Drafts with prompt lookup, else with token recycling."""

    def __init__(self, options: LookupRecyclingOptions = LookupRecyclingOptions()) -> None:
        super().__init__(PromptLookup(options.lookup()), TokenRecycling(options))
