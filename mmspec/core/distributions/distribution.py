"""A distribution at every node: the target's and the drafter's alike.

A draw may be more than the unit that is emitted (a whole denoising trajectory). What `draw` and `couple` return are
draws; `units` says what of them is emitted and compared; `with_draws` is the distribution of a draft that consists of
them. For simple distributions a draw is its unit, and `with_draws` is the distribution itself.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from mmspec.core.noise import Noise


class Distribution(Protocol):
    """A distribution at every node of a round, batched: `[batch, node]` distributions over units.

    What a distribution may have beside: `mmspec.core.distributions.capabilities`.
    """

    @staticmethod
    def cat(distributions: "Sequence[Any]") -> "Distribution":
        """Distributions of one family joined along the nodes."""
        ...

    def draw(self, noise: Noise) -> Tensor:
        """One draw at every node: `[batch, node, *draw]`."""
        ...

    def couple(self, draft: "Distribution", x: Tensor, noise: Noise) -> Tensor:
        """y ~ self, given x ~ draft, equal to x as often as this distribution can make it: draws, `[batch, node,
        *draw]`.

        Args:
            draft: A distribution of the same family, same nodes (as `with_draws` its draws). Point masses and mixtures
                of distributions are taken apart by `mmspec.core.distributions.couple` before they get here.
            x: What was drafted, `[batch, node, *unit]`.
            noise: Fresh in every round; coin and residual are its own lanes.
        """
        ...

    def units(self, draws: Tensor) -> Tensor:
        """What is emitted, and compared, of `draws [batch, node, *draw]`: `[batch, node, *unit]`."""
        ...

    def with_draws(self, draws: Tensor) -> "Distribution":
        """The distribution of a draft that consists of these draws of it (or coupled with it), for the next
        coupling.
        """
        ...

    def take(self, nodes: Tensor) -> Self:
        """The distributions at `nodes [batch, m]` (or `[1, m]`)."""
        ...

    def confidence(self) -> Tensor:
        """Log of the largest probability at every node, as far as the distribution has one: `[batch, node]`."""
        ...

    def finite(self) -> Tensor:
        """Whether the distribution at each node is one, neither NaN nor without mass: `[batch, node]` bool."""
        ...


def take_nodes(values: Tensor, nodes: Tensor) -> Tensor:
    """Gather `values [batch, node, …]` at `nodes [batch, m]` or `[1, m]`: `[batch, m, …]`."""
    rows, count = values.shape[:2]
    if values.dim() == 2:
        return values.gather(1, nodes.expand(rows, -1))
    # Whole nodes are copied at once, many times faster than `gather` with an index for each of their numbers.
    at = nodes if rows == 1 else nodes + count * torch.arange(rows, device=nodes.device)[:, None]
    return values.flatten(0, 1).index_select(0, at.flatten()).unflatten(0, (rows, nodes.shape[1]))


def finite_nodes(values: Tensor) -> Tensor:
    """Where all of `values [batch, node, …]` is finite: `[batch, node]` bool."""
    return values.isfinite().reshape(*values.shape[:2], -1).all(-1)


def where_nodes(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `mask [batch, node]`, else `b`; both `[batch, node, *unit]`."""
    return torch.where(mask.reshape(*mask.shape, *(1,) * (a.dim() - 2)), a, b)
