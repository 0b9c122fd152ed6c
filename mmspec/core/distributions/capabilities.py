"""What some distributions can do beside what all must: one protocol per capability, asked for by `isinstance`."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from mmspec.core.distributions.distribution import Distribution
from mmspec.core.noise import Noise


@runtime_checkable
class CouplesAtOnce(Protocol):
    """A distribution whose draws are expensive, so that coupled and free draws are computed together."""

    def draw_coupled(self, draft: Distribution, x: Tensor, follows: Tensor, noise: Noise) -> Tensor:
        """One draw at every node: `[batch, node, *draw]`.

        Args:
            draft: What the drafted nodes were drawn from.
            x: The drafted units, `[batch, node - 1, *unit]`.
            follows: `[batch, node - 1]` bool: nodes whose draw is coupled with their drafted child; the other nodes,
                and the last one, draw freely.
            noise: Fresh in every round.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A distribution that can say why it is not a valid one."""

    def fault(self, draws: Tensor, row: int, node: int) -> str:
        """What is wrong at a node, for an error message, given `draws [batch, node, *draw]`; "" if nothing is."""
        ...
