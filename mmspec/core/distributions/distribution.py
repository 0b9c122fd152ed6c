"""A distribution at every node: one protocol for the target's distributions and the drafter's.

A draw may hold more than the unit that is emitted (a whole denoising trajectory, say). `draw` and `couple` return
draws; `units` extracts the units, which are emitted and compared; `with_draws` is the distribution of a draft that
consists of given draws. For simple distributions a draw is its unit, and `with_draws` returns the distribution itself.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.noise import Noise


class Distribution(Protocol):
    """A distribution at every node of a round, batched: `[batch, node]` distributions over units.

    Optional members: `mmspec.core.distributions.capabilities`.
    """

    @staticmethod
    def cat(distributions: "Sequence[Any]") -> "Distribution":
        """Distributions of one family joined along the nodes."""

    def draw(self, noise: Noise) -> Tensor:
        """One draw at every node: `[batch, node, *draw]`."""

    def couple(self, draft: "Distribution", x: Tensor, noise: Noise) -> Tensor:
        """Draws y ~ self, `[batch, node, *draw]`, given x ~ draft, so that y = x as often as possible.

        Args:
            draft: A distribution of the same family at the same nodes; where a draw is more than its unit, with the
                draws (`with_draws`). The function `mmspec.core.distributions.couple` handles point masses and `Mixed`
                before it calls this method.
            x: The drafted units, `[batch, node, *unit]`.
            noise: Fresh in every round; coin and residual have substreams of their own.

        Raises:
            TypeError: The two families have no coupling.
        """

    def units(self, draws: Tensor) -> Tensor:
        """The units of `draws [batch, node, *draw]`, which are emitted and compared: `[batch, node, *unit]`."""

    def with_draws(self, draws: Tensor) -> "Distribution":
        """The distribution of a draft that consists of these draws (from it, or coupled with it)."""

    def take(self, nodes: Tensor) -> Self:
        """The distributions at `nodes [batch, m]` (or `[1, m]`)."""

    def confidence(self) -> Tensor:
        """Log of the largest probability at every node, 0 if the distribution has none: `[batch, node]` float32."""

    def finite(self) -> Tensor:
        """True if each node's distribution is valid, neither NaN nor without mass: `[batch, node]` bool."""


class DrawsUnits:
    """A distribution whose draws are its units."""

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def with_draws(self, draws: Tensor) -> Self:
        return self


def take_nodes(values: Tensor, nodes: Tensor) -> Tensor:
    """Gather `values [batch, node, …]` at `nodes [batch, m]` or `[1, m]`: `[batch, m, …]`."""
    rows, count = values.shape[:2]
    if values.dim() == 2:
        return values.gather(1, nodes.expand(rows, -1))
    # Whole nodes are copied at once, many times faster than `gather` with an index for every number.
    index = nodes if rows == 1 else nodes + torch.arange(0, rows * count, count, device=nodes.device)[:, None]
    return values.flatten(0, 1).index_select(0, index.flatten()).view(rows, nodes.shape[1], *values.shape[2:])


def finite_nodes(values: Tensor) -> Tensor:
    """Nodes at which all of `values [batch, node, …]` are finite: `[batch, node]` bool."""
    return values.isfinite().reshape(*values.shape[:2], -1).all(-1)


def where_nodes(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `mask [batch, node]`, else `b`; both `[batch, node, *unit]`."""
    return torch.where(mask.reshape(*mask.shape, *(1,) * (a.dim() - 2)), a, b)


@runtime_checkable
class CouplesTarget(Protocol):
    """A draft's distribution with which a target's is coupled in a way of its own."""

    def couple_target(self, target: Any, x: Tensor, noise: Noise, follows: Tensor | None = None) -> Tensor:
        """As `Distribution.couple` of the target; at nodes where `follows [batch, node]` is False it draws freely."""


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


@runtime_checkable
class Explaining(Protocol):
    """A distribution that can say why it is not a valid one."""

    def fault(self, draws: Tensor, row: int, node: int) -> str:
        """The fault at a node, for an error message, given `draws [batch, node, *draw]`; "" if nothing is."""
