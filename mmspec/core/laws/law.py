"""A distribution at every node: the target's and the drafter's alike."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from mmspec.core.noise import Noise


class Law(Protocol):
    """A law at every node of a round, batched: `[batch, node]` laws over units."""

    @staticmethod
    def cat(laws: "Sequence[Any]") -> "Law":
        """Laws of one family joined along the nodes."""
        ...

    def draw(self, noise: Noise) -> Tensor:
        """One unit at every node: `[batch, node, *unit]`."""
        ...

    def couple(self, draft: "Law", x: Tensor, noise: Noise) -> Tensor:
        """y ~ self, given x ~ draft, equal to x as often as this law can make it: `[batch, node, *unit]`.

        Args:
            draft: A law of the same family, same nodes. Point masses and mixtures of laws are taken apart by
                `mmspec.core.laws.couple` before they get here.
            x: What was drafted, `[batch, node, *unit]`.
            noise: Fresh in every round; coin and residual are its own lanes.
        """
        ...

    def take(self, nodes: Tensor) -> Self:
        """The laws at `nodes [batch, m]` (or `[1, m]`)."""
        ...

    def confidence(self) -> Tensor:
        """Log of the largest probability at every node, as far as the law has one: `[batch, node]`."""
        ...

    def finite(self) -> Tensor:
        """Whether the law at each node is one: `[batch, node]` bool."""
        ...


def take_nodes(values: Tensor, nodes: Tensor) -> Tensor:
    """Gather `values [batch, node, …]` at `nodes [batch, m]` or `[1, m]`: `[batch, m, …]`."""
    nodes = nodes.expand(len(values), -1)
    return values.gather(1, nodes.reshape(*nodes.shape, *(1,) * (values.dim() - 2)).expand(-1, -1, *values.shape[2:]))


def where_nodes(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `mask [batch, node]`, else `b`; both `[batch, node, *unit]`."""
    return torch.where(mask.reshape(*mask.shape, *(1,) * (a.dim() - 2)), a, b)
