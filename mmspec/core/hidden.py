"""Hidden states of a target, and what else trained heads take from it: the capabilities of targets that have them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mmspec.core.protocols import Target

FINAL = -1
"""The boundary behind the final norm: the state that the output layer reads."""


@runtime_checkable
class GivesHidden(Protocol):
    """A target that can return hidden states: those at the boundaries of its layers.

    Boundary `i` is the input of layer `i`; boundary `layers()` is the output of the last layer, before the final norm;
    `FINAL` is behind that norm.
    """

    def layers(self) -> int:
        """Number of layers, which is the last boundary.

        Raises:
            ValueError: The layers cannot be told from the model's other parts.
        """

    @property
    def hidden_size(self) -> int:
        """Numbers of a state at one boundary."""

    def with_hidden(self, boundaries: Sequence[int]) -> Target:
        """This target, with outputs that carry the states at these boundaries, one behind the other.

        Args:
            boundaries: The boundaries, in the order in which their states are joined in `TargetOutput.hidden` and
                `Prefill.hidden`.

        Returns:
            Another target over the same model, which is not changed; neither are other decoders of this target.

        Raises:
            ValueError: There is no such boundary.
        """


@runtime_checkable
class ReadsHidden(Protocol):
    """A target that may have been asked for hidden states.

    Attributes:
        boundaries: The boundaries whose states its outputs carry, in their order; empty: no states.
    """

    boundaries: tuple[int, ...]


@dataclass(frozen=True)
class Lent:
    """The parts that a target lends to a head; none of them is changed."""

    embedding: nn.Embedding  # the table of the units, with `weight [vocab, width]`
    output: nn.Module  # from states at `FINAL` to logits
    device: torch.device  # the device of the model
    dtype: torch.dtype  # the dtype of its weights
    # Positions in front of the first unit. They hold a condition, and prefill returns their states, too.
    before: int = 0
    # From the width of a head to cosines and sines of the target's positions, `[position, width / 2, 2]`, for heads
    # whose units stand on the target's grid; None: it has no grid
    rotary: Callable[[int], Tensor] | None = None


@runtime_checkable
class Lends(GivesHidden, Protocol):
    """A target that heads draft for.

    Under guidance its hidden states are those of both halves, side by side: twice as many numbers, the conditional
    half's first.
    """

    @property
    def model(self) -> Any:
        """The live model."""

    @property
    def vocab(self) -> int | None:
        """Number of unit ids."""

    def lend(self) -> Lent:
        """The parts of the model that heads use, which may have been moved or cast since the last call."""
