"""What is known of early exits in a call: DEL (Entezari Zarch et al., arXiv 2504.05598).

*Shadow tokens* are what the model would have drafted behind each of its layers; the states that verification computed
give them for nothing but the output layer. Of every layer they say how many units in a row it would have got right.
The weights of old rounds and the prior are ours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MEMORY = 0.95
"""The weight of a round, relative to that of the next one."""


def token_per_layer(rates: Tensor, layers: Tensor, longest: int, whole: int) -> Tensor:
    """Token-per-layer: units that a round is expected to emit, for each layer that it runs.

    The whole model counts `whole` layers, and a draft of `d` units behind layer `l` another `d · l`.

    Args:
        rates: `[exit]` float64 in [0, 1]: the probability that a unit drafted there is accepted.
        layers: `[exit]`: layers that a draft runs.
        longest: Most units of a draft.
        whole: Layers of the model.

    Returns:
        `[exit, length]` float64, for lengths from 0 on.
    """
    lengths = torch.arange(longest + 1, device=rates.device)
    expected = (rates[:, None] ** lengths).cumsum(1)  # 1 + α + … + α^d
    return expected / (lengths * layers[:, None] + whole)


def matches(shadow: Tensor, emitted: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """How many shadow tokens in a row were right, and how many were asked for that: `[exit]` float64, over all rows.

    Args:
        shadow: `[exit, batch, n]`: what each exit would have drafted.
        emitted: `[batch, n]`: the units that came.
        count: `[batch]`: how many of them there are.
    """
    there = torch.arange(emitted.shape[1], device=count.device) < count[:, None]
    right = ((shadow == emitted) & there).long().cumprod(2).sum(2)  # [exit, batch]
    asked = torch.minimum(right + 1, count)
    return right.sum(1).double(), asked.sum(1).double()


@dataclass
class ExitMemory:
    """A call's counts, weighted by age."""

    right: Tensor  # `[exit]` float64: units that were right, by exit
    asked: Tensor  # `[exit]` float64: units of which that is known
    # Sums of the confidences of drafted units, and their number, if refused and if accepted: `[2, 2]` float64
    sure: Tensor
    passes: float = 0.0  # as in `ReadShare`

    @classmethod
    def of(cls, exits: int, device: torch.device) -> "ExitMemory":
        """At the beginning of a call, nothing is known."""
        right, asked, sure = (torch.zeros(size, dtype=torch.float64, device=device) for size in (exits, exits, (2, 2)))
        return cls(right, asked, sure)

    @property
    def rates(self) -> Tensor:
        """Acceptance rates `[exit]`; 1 in 2 where nothing is known (Laplace's rule)."""
        return (self.right + 1) / (self.asked + 2)

    @property
    def least_sure(self) -> float:
        """The confidence below which a draft ends: between the means of refused and of accepted units; 0 at first."""
        return float((self.sure[:, 0] / self.sure[:, 1]).mean().nan_to_num(0))  # 0 / 0 where there were none

    def saw(self, shadow: Tensor, emitted: Tensor, count: Tensor) -> None:
        """Count a round; arguments as in `matches`."""
        right, asked = matches(shadow, emitted, count)
        self.right, self.asked = MEMORY * self.right + right, MEMORY * self.asked + asked

    def drafted(self, confidence: Tensor, accepted: Tensor, judged: Tensor) -> None:
        """Count a draft.

        Args:
            confidence: `[batch, k]`: how sure the drafter was of each unit.
            accepted: `[batch, k]` bool.
            judged: `[batch, k]` bool: units that were accepted, or refused behind accepted ones.
        """
        for kind, which in enumerate((judged & ~accepted, judged & accepted)):
            now = torch.stack([(confidence * which).sum(), which.sum()])
            self.sure[kind] = MEMORY * self.sure[kind] + now
