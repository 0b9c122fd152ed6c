"""Hidden states of a target: the capability of targets that return them, and the name of the last boundary."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

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
        ...

    @property
    def hidden_size(self) -> int:
        """Numbers of a state at one boundary."""
        ...

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
        ...
