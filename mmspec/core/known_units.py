"""Constraints whose known units and allowed ids are data: a decoder then needs not ask a function at every node.

A `prefix_allowed_tokens_fn` of transformers that is a `KnowsUnits` works in unmodified `generate`, too, as a function.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class KnowsUnits(Protocol):
    """A constraint of a call, as data.

    Attributes:
        prompt: Columns of the prompt, padding included.
        allowed: `[n]` int64: the ids that units may have which are not known.
        forced: `[units]` int64: ids that are known in advance, -1 elsewhere; the call has at most so many units.
    """

    prompt: int
    allowed: Tensor
    forced: Tensor


@dataclass(frozen=True, eq=False)
class OnlyAllowed:
    """A logits processor that allows the ids of a constraint; known units are the warp's (`Warp.forced`).

    Where other processors left no allowed id, all of them are as likely, as in transformers.
    """

    known: KnowsUnits  # the constraint
    allowed: Tensor  # its `allowed`, on the device of the scores

    speculative = "elementwise"

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab]`, -inf for other ids."""
        of_allowed = scores.index_select(1, self.allowed)
        of_allowed = of_allowed.masked_fill(of_allowed.isneginf().all(1, keepdim=True), 0.0)
        return scores.new_full(scores.shape, float("-inf")).index_copy(1, self.allowed, of_allowed)
