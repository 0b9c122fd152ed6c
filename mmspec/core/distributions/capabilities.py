"""What a distribution may do beside what everybody must: one protocol a capability, asked for by `isinstance`."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from mmspec.core.distributions.distribution import Distribution
from mmspec.core.noise import Noise


@runtime_checkable
class CouplesAtOnce(Protocol):
    """A distribution whose draws are expensive, so that coupled and free ones are made in one go."""

    def draw_coupled(self, draft: Distribution, x: Tensor, follows: Tensor, noise: Noise) -> Tensor:
        """One draw at every node: `[batch, node, *draw]`.

        Args:
            draft: What the drafted nodes were drawn from.
            x: `[batch, node - 1, *unit]`: what was drafted.
            follows: `[batch, node - 1]` bool: nodes whose drafted child their draw is coupled with; the others, and the
                last node, draw freely.
            noise: Fresh in every round.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A distribution that can say why it is none."""

    def fault(self, draws: Tensor, row: int, node: int) -> str:
        """For an error's message: what is wrong at a node, given `draws [batch, node, *draw]`; "" where nothing is."""
        ...
