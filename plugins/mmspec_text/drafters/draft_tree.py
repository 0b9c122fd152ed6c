"""A smaller language model drafts a tree (`mmspec.core.drafters.draft_model`), in one of five shapes.

* `rerank`: EAGLE-2's expand and rerank (arXiv 2406.16858); exact under `match`, where siblings are Gumbel-top-k with
  the target's own noise. The default tree.
* `greedy`: the likeliest nodes whatever their form, as in DySpec (2410.11744); exact under `match`, likewise.
* `heap`: DySpec's, whose nodes are valued before they are drawn; exact under `recursive-rejection` and `match`.
* `branching`: RSD-C (2402.14160) and Sequoia's sampling (2402.12374); exact under `recursive-rejection` and `match`.
* `beam`: RSD-S (2402.14160), a stochastic beam; exact under `recursive-rejection` and `match`.
"""

from dataclasses import dataclass, field
from typing import Literal

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.protocols import Target
from mmspec_text.drafters.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec_text.drafters.tree_form import TreeForm
from mmspec_text.training.lessons import ModelLesson


@dataclass(frozen=True)
class DraftTreeOptions(TreeForm, SmallModelOptions):
    """Options of `draft-tree`."""

    form: Literal["rerank", "greedy", "heap", "branching", "beam"] = field(
        default="rerank",
        metadata={"help": "which nodes to draft; rerank, greedy: rules match and relaxed, the others: any"},
    )


class TextDraftTree(DraftModel):
    """Drafts trees with a smaller transformers model.

    Args:
        options: The small model, its tokenizers and the shape of the tree.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    def __init__(self, options: DraftTreeOptions = DraftTreeOptions()) -> None:
        self.options, self._small = options, load_small_model(options, "draft-tree")
        super().__init__(self._small, options.build_shape())
        chosen = options.form in ("rerank", "greedy")
        self.advice = "; form=heap, branching and beam keep their distribution and fit" if chosen else ""

    def bind(self, target: Target) -> None:
        self.model, self._target = in_target_ids(self._small, target, self.options), target
        super().bind(target)

    def lesson(self, loss: str, depth: int) -> ModelLesson:
        """What the draft model learns between calls; arguments and errors as in `Learns`."""
        return ModelLesson(self._small, self._target, loss)
