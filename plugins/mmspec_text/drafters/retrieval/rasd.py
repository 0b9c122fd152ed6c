"""`rasd`: the tree of a head or a smaller model, and what retrieval adds to it.

RASD (arXiv 2503.03434): retrieved continuations are a tree, which is pruned by the drafter's distribution, to those
whose first unit the drafter ranks among its best, and fused with the drafter's tree by their longest common prefixes,
as `united` does it. What is retrieved follows the text's end in a datastore (`corpus`, as `rest`) or, without one, in
the text itself (as `prompt-lookup`): the paper has both. The drafter is what the files of `model` call for, such as an
EAGLE head, or a smaller language model.
The paper's text could not be read, only its summary: that the units which the drafter drafts itself (`width`) are its
best ones, and that a retrieved node is worth its share of the retrieved texts, as far as these were right before, are
ours.
Guarantee: drafts are point masses, and the model chooses nodes by their units: exact under `match`.
Knobs: those of `draft-tree` (`form="rerank"`) and of `rest`; `retrieved` (nodes beside the drafter's own number).
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from mmspec.core.capabilities import OwnLength
from mmspec.kits.text.small_model import SmallModelOptions
from mmspec.registry.options import option
from mmspec_text import specs
from mmspec_text.drafters.prompt_lookup import PromptLookup
from mmspec_text.drafters.retrieval.rest import Datastore, Rest, RestOptions
from mmspec_text.drafters.united import United, first_drafter, first_of


@dataclass(frozen=True)
class RasdOptions(Datastore, SmallModelOptions):
    """Options of `rasd`."""

    first: str | None = option(
        None, "what drafts with the model: eagle, draft-tree, …; by default what its files call for"
    )
    form: Literal["rerank", "greedy"] = option("rerank", "the model's tree")
    width: Annotated[int, Field(ge=1, le=64)] = option(4, "the model's nodes expanded per level, and children of each")
    nodes: Annotated[int, Field(ge=1, le=512)] = option(12, "nodes that the model drafts")
    retrieved: Annotated[int, Field(ge=1, le=512)] = option(
        8, "nodes that are verified beside so many: retrieved ones, or the model's"
    )


class Rasd(United):
    """Drafts with a model and with what is retrieved."""

    def __init__(self, options: RasdOptions = RasdOptions()) -> None:
        given = vars(options)
        spec = first_of(options.model, options.first, specs.DRAFT_TREE)
        texts = {option.name: given[option.name] for option in fields(Datastore)}
        drafter, depth = first_drafter(spec, {n: v for n, v in given.items() if n == "tokenizer" or n not in texts})
        retriever: Any = PromptLookup()
        if options.corpus is not None:  # of a datastore's nodes many are the model's already
            retriever = Rest(RestOptions(**texts, nodes=4 * options.retrieved))
        trained = depth if isinstance(drafter, OwnLength) else None
        super().__init__(drafter, retriever, options.nodes + options.retrieved, trained, agreed=True)
