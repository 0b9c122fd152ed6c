"""A smaller language model drafts a chain (`mmspec.core.drafters.draft_model`).

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). Under `match` its draws share the
target's noise, so that a good draft model agrees at temperature 1 as often as in greedy decoding. A model with another
tokenizer drafts the tokens that both vocabularies have (Timor et al., 2502.05202).
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Chain
from mmspec.core.protocols import Target
from mmspec_text.drafters.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec_text.training.lessons import ModelLesson


@dataclass(frozen=True)
class DraftModelOptions(SmallModelOptions):
    """Options of `draft-model`."""

    sure: Annotated[float, Field(ge=0, le=1)] = field(
        default=0.0,
        metadata={"help": "a draft ends before a unit whose likeliest value is below this; higher drafts less"},
    )


class TextDraftModel(DraftModel):
    """Drafts a chain with a smaller transformers model.

    Args:
        options: The small model and its tokenizers.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    def __init__(self, options: DraftModelOptions = DraftModelOptions()) -> None:
        self.options, self._small = options, load_small_model(options, "draft-model")
        super().__init__(self._small, Chain(options.sure))

    def bind(self, target: Target) -> None:
        self.model, self._target = in_target_ids(self._small, target, self.options), target
        super().bind(target)

    def lesson(self, loss: str, depth: int) -> ModelLesson:
        """What the draft model learns between calls; arguments and errors as in `Learns`."""
        return ModelLesson(self._small, self._target, loss)
