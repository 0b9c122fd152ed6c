"""What a target says of a text: the features that a head reads, and its distribution behind every unit.

Both are computed anew in every step. For a small target that costs less than reading them from a disk: one unit has
`(boundaries + 1) · hidden` numbers of features beside the distribution.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.hosts.draft_models import own_target
from mmspec.hosts.features import Reading


class Teacher:
    """A target that is read and never changed.

    The live model is in evaluation mode; its states at `boundaries` are the features; (): none.

    Raises:
        ValueError: The model has no such boundaries, or drafts for it cannot be verified.
    """

    def __init__(self, model: Any, boundaries: Sequence[int] = ()) -> None:
        target = own_target(model)
        if boundaries:
            target.with_hidden(boundaries)  # refuses those that there are not
        self.model, self._model_info, self._boundaries = target.model, target.model_info, tuple(boundaries)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor | None, Tensor]:
        """The features `[batch, unit, width]` of `ids [batch, unit]`, or None; and logits `[batch, unit, vocab]`,
        float32.
        """
        with Reading(self._model_info, self._boundaries) as reading:
            logits = self.model(input_ids=ids, use_cache=False).logits
        return reading.states, logits.float()
