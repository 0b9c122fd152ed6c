"""Options for the form of a draft that a model or a head grows level by level."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mmspec.core.drafters.shapes import Beam, Branching, Chain, Heap, Rerank, Shape
from mmspec.kits.text.small_model import SmallModelOptions
from mmspec.registry.options import option


@dataclass(frozen=True)
class TreeForm:
    """Options that say which nodes are drafted."""

    form: Literal["chain", "rerank", "greedy", "heap", "branching", "beam"] = option(
        "rerank", "which nodes to draft; rerank, greedy: rules match and relaxed, the others: any"
    )
    width: Annotated[int, Field(ge=1, le=64)] = option(
        6, "nodes expanded per level (rerank, beam), and most children of each (rerank, greedy, heap)"
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = option(
        24, "rerank, greedy, heap: nodes that are verified; more are accepted, and each costs"
    )
    branching: tuple[Annotated[int, Field(ge=1, le=64)], ...] = option(
        (3, 2, 1, 1, 1), "branching: children of every node, by depth"
    )
    spread: Annotated[float, Field(gt=0, le=10)] = option(
        0.75, "rerank, greedy: temperature of the scores of sampled nodes; smaller draws deeper trees"
    )

    def __post_init__(self) -> None:
        if not self.branching:
            raise ValueError("branching lists children per depth, as in [4, 2, 1]; got none")

    @property
    def advice(self) -> str:
        """Advice for a user whose rule does not take drafts of this form."""
        chosen = "rerank" in self.build_shape().needs
        return "; form=chain, heap, branching and beam keep their distribution" if chosen else ""

    def build_shape(self) -> Shape:
        """The shape that these options describe."""
        if self.form == "chain":
            return Chain()
        if self.form == "branching":
            return Branching(self.branching)
        if self.form == "beam":
            return Beam(self.width)
        if self.form == "heap":
            return Heap(self.width, self.nodes)
        return Rerank(None if self.form == "greedy" else self.width, self.width, self.nodes, self.spread)


@dataclass(frozen=True)
class DraftTreeOptions(TreeForm, SmallModelOptions):
    """Options of `draft-tree`, and of what drafts as it does."""

    form: Literal["rerank", "greedy", "heap", "branching", "beam"] = option(
        "rerank", "which nodes to draft; rerank, greedy: rules match and relaxed, the others: any"
    )
