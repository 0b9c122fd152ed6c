"""A smaller language model drafts a chain or a tree (`mmspec.core.drafters.draft_model`).

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). Under `match` its draws share the
target's noise, so that a good draft model agrees at temperature 1 as often as in greedy decoding. A model with another
tokenizer drafts the tokens that both vocabularies have (Timor et al., 2502.05202).

A tree has one of five shapes:

* `rerank`: EAGLE-2's expand and rerank (arXiv 2406.16858); exact under `match`, where siblings are Gumbel-top-k with
  the target's own noise. The default tree.
* `greedy`: the likeliest nodes whatever their form, as in DySpec (2410.11744); exact under `match`, likewise.
* `heap`: DySpec's, whose nodes are valued before they are drawn; exact under `recursive-rejection` and `match`.
* `branching`: RSD-C (2402.14160) and Sequoia's sampling (2402.12374); exact under `recursive-rejection` and `match`.
* `beam`: RSD-S (2402.14160), a stochastic beam; exact under `recursive-rejection` and `match`.
"""

from mmspec.core.drafters.shapes import Chain
from mmspec.kits.text.small_model import DraftModelOptions, SmallModelDrafter
from mmspec.kits.text.tree_form import DraftTreeOptions
from mmspec_text.training.lessons import ModelLesson


class TextDraftModel(SmallModelDrafter):
    """Drafts a chain with a smaller transformers model."""

    def __init__(self, options: DraftModelOptions = DraftModelOptions()) -> None:
        super().__init__(options, "draft-model", Chain(options.sure))

    def lesson(self, loss: str, depth: int) -> ModelLesson:
        """The draft model's lesson between calls; arguments and errors as in `Learns`."""
        return ModelLesson(self._small, self._target, loss)


class TextDraftTree(SmallModelDrafter):
    """Drafts trees with a smaller transformers model."""

    def __init__(self, options: DraftTreeOptions = DraftTreeOptions()) -> None:
        super().__init__(options, "draft-tree", options.build_shape())
        chosen = options.form in ("rerank", "greedy")
        self.advice = "; form=heap, branching and beam keep their distribution and fit" if chosen else ""

    def lesson(self, loss: str, depth: int) -> ModelLesson:
        """The draft model's lesson between calls; arguments and errors as in `Learns`."""
        return ModelLesson(self._small, self._target, loss)
