"""A smaller language model drafts a tree (`mmspec.core.drafters.draft_model`), in one of three shapes.

* `rerank`: EAGLE-2's expand and rerank (arXiv 2406.16858); exact under `match`, where siblings are Gumbel-top-k with
  the target's own noise. The default tree.
* `branching`: RSD-C (2402.14160) and Sequoia's sampling (2402.12374); exact under `recursive-rejection` and `match`.
* `beam`: RSD-S (2402.14160), a stochastic beam; exact under `recursive-rejection` and `match`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Beam, Branching, Rerank, Shape
from mmspec.core.protocols import Target
from mmspec_text.drafters.small_model import SmallModelOptions, in_target_ids, load_small_model


@dataclass(frozen=True)
class DraftTreeOptions(SmallModelOptions):
    """Options of `draft-tree`."""

    form: Literal["rerank", "branching", "beam"] = field(
        default="rerank", metadata={"help": "which nodes to draft; rerank needs the rule match, the others fit any"}
    )
    width: Annotated[int, Field(ge=1, le=64)] = field(
        default=6, metadata={"help": "rerank: nodes expanded per level, and children of each; beam: nodes per level"}
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = field(
        default=24, metadata={"help": "rerank: nodes that are verified; more are accepted, and each costs"}
    )
    branching: tuple[Annotated[int, Field(ge=1, le=64)], ...] = field(
        default=(3, 2, 1, 1, 1), metadata={"help": "branching: children of every node, by depth"}
    )
    spread: Annotated[float, Field(gt=0, le=10)] = field(
        default=0.75,
        metadata={"help": "rerank: temperature of the scores of sampled nodes; smaller draws deeper trees"},
    )

    def __post_init__(self) -> None:
        if not self.branching:
            raise ValueError("branching lists children per depth, as in [4, 2, 1]; got none")

    def build_shape(self) -> Shape:
        """The shape that these options describe."""
        if self.form == "branching":
            return Branching(self.branching)
        return Beam(self.width) if self.form == "beam" else Rerank(self.width, self.width, self.nodes, self.spread)


class TextDraftTree(DraftModel):
    """Drafts trees with a smaller transformers model.

    Args:
        options: The small model, its tokenizers and the shape of the tree.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    example = "mmspec_text.example:draft_tree"

    def __init__(self, options: DraftTreeOptions = DraftTreeOptions()) -> None:
        self.options, self._small = options, load_small_model(options, "draft-tree")
        super().__init__(self._small, options.build_shape())
        self.advice = (
            "; form=branching and form=beam keep their distribution and fit" if options.form == "rerank" else ""
        )

    def bind(self, target: Target) -> None:
        self.model = in_target_ids(self._small, target, self.options)
        super().bind(target)
