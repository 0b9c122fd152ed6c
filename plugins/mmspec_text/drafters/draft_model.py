"""A smaller language model drafts a chain (`mmspec.core.drafters.draft_model`).

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). Under `match` its draws share the
target's noise, so that a good draft model agrees at temperature 1 as often as in greedy decoding. A model with another
tokenizer drafts the tokens that both vocabularies have (Timor et al., 2502.05202).
"""

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Chain
from mmspec.core.protocols import Target
from mmspec.kits.text.small_model import DraftModelOptions, in_target_ids, load_small_model
from mmspec_text.training.lessons import ModelLesson


class TextDraftModel(DraftModel):
    """Drafts a chain with a smaller transformers model.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    example = "mmspec_text.example:draft_model"

    def __init__(self, options: DraftModelOptions = DraftModelOptions()) -> None:
        self.options, self._small = options, load_small_model(options, "draft-model")
        super().__init__(self._small, Chain(options.sure))

    def bind(self, target: Target) -> None:
        self.model, self._target = in_target_ids(self._small, target, self.options), target
        super().bind(target)

    def lesson(self, loss: str, depth: int) -> ModelLesson:
        """What the draft model learns between calls; arguments and errors as in `Learns`."""
        return ModelLesson(self._small, self._target, loss)
