"""`rasd`: a smaller model's tree, and what a datastore of texts adds to it.

RASD (arXiv 2503.03434): a retrieved tree (`rest`) is pruned to continuations whose first unit the small model drafts,
too, and fused with its tree by their longest common prefixes, as `united` does it. The paper's text could not be read,
only its summary: the pruning by the small model's best next units, and that a retrieved node is worth its share of the
retrieved texts, as far as these were right before, are ours.
Guarantee: drafts are point masses, and the small model chooses nodes by their units: exact under `match`.
Knobs: those of `draft-tree` (`form="rerank"`) and of `rest`; `retrieved` (nodes beside the model's own number).
"""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field

from mmspec.kits.text.small_model import SmallModelOptions
from mmspec.registry.options import option
from mmspec_text.drafters.draft_model import DraftTreeOptions, TextDraftTree
from mmspec_text.drafters.retrieval.rest import Datastore, Rest, RestOptions
from mmspec_text.drafters.united import United
from mmspec_text.specs import RASD


@dataclass(frozen=True)
class RasdOptions(Datastore, SmallModelOptions):
    """Options of `rasd`."""

    form: Literal["rerank", "greedy"] = option("rerank", "the small model's tree")
    width: Annotated[int, Field(ge=1, le=64)] = option(
        4, "the small model's nodes expanded per level, and children of each"
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = option(12, "nodes that the small model drafts")
    retrieved: Annotated[int, Field(ge=1, le=512)] = option(
        8, "nodes that are verified beside so many: of the datastore, or the model"
    )


class Rasd(United):
    """Drafts with a smaller transformers model and a datastore."""

    needs, offers = RASD.needs, RASD.offers

    def __init__(self, options: RasdOptions = RasdOptions()) -> None:
        given = vars(options)
        texts = {option.name: given[option.name] for option in fields(Datastore)}
        rest = Rest(RestOptions(**texts, nodes=4 * options.retrieved))  # many are the model's already
        own = {option.name: given[option.name] for option in fields(SmallModelOptions)}
        tree = DraftTreeOptions(**own, form=options.form, width=options.width, nodes=options.nodes)
        super().__init__(TextDraftTree(tree), rest, options.nodes + options.retrieved, agreed=True)
