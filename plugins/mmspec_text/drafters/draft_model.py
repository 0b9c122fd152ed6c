"""A smaller language model drafts a chain (`mmspec.core.drafters.draft_model`).

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). Under `match` its draws share the
target's noise, so that a good draft model agrees at temperature 1 as often as in greedy decoding. A model with another
tokenizer drafts the tokens that both vocabularies have (Timor et al., 2502.05202).
"""

from mmspec.core.drafters.shapes import Chain
from mmspec.kits.text.small_model import DraftModelOptions, SmallModelDrafter
from mmspec_text.training.lessons import ModelLesson


class TextDraftModel(SmallModelDrafter):
    """Drafts a chain with a smaller transformers model."""

    def __init__(self, options: DraftModelOptions = DraftModelOptions()) -> None:
        super().__init__(options, "draft-model", Chain(options.sure))

    def lesson(self, loss: str, depth: int) -> ModelLesson:
        """The draft model's lesson between calls; arguments and errors as in `Learns`."""
        return ModelLesson(self._small, self._target, loss)
