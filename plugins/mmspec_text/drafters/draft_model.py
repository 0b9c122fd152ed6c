"""A smaller language model as drafter: loading and checks; the drafting itself is the core's.

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). Under `match` its draws share the
target's noise, so that a good drafter agrees at temperature 1 as it does when greedy.
"""

from dataclasses import dataclass, field
from typing import Any

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.hosts.target import TransformersTarget


@dataclass(frozen=True)
class DraftModelOptions:
    """Options of `draft-model`."""

    model: Any = field(
        default=None, metadata={"help": "the smaller model: a shipped name, a folder, a hub name or a live model"}
    )


class TextDraftModel(DraftModel):
    """Drafts with a smaller transformers model of the same vocabulary.

    Args:
        options: Which model.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    def __init__(self, options: DraftModelOptions = DraftModelOptions()) -> None:
        model = options.model
        if model is None:
            raise ValueError("draft-model needs a smaller model: drafter=<model>, or the option model=mmspec/text-1m")
        if isinstance(model, str):
            from mmspec.hosts.loading import load_model

            model = load_model(model)
        super().__init__(TransformersTarget(model))
