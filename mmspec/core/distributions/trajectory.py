"""What a denoising chain went through: a draft's distribution that needs no head.

A trajectory is a chain of Gaussians around known means, and that is all that reflection asks of a draft. Another draw
around the same means (`draw`) costs no network: given the slot that they came from, they are numbers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, finite_nodes, take_nodes
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class Schedule:
    """The steps of a chain.

    Attributes:
        sigmas: Noise of every step; the last one is sigma_0.
        carry: How much of the state every step's mean carries over, whatever the condition; 0 where it is not known.
    """

    sigmas: tuple[float, ...]
    carry: tuple[float, ...]

    @staticmethod
    def of(head: Any) -> "Schedule":
        """A head's schedule.

        Raises:
            ValueError: It has no noise, noiseless steps, or variances of the tokens' own.
        """
        given = head.sigmas, getattr(head, "carry", [0.0] * len(head.sigmas))
        sigmas, carry = (s if isinstance(s, Tensor) else torch.tensor(s, dtype=torch.float32) for s in given)
        if sigmas.dim() != 1 or not len(sigmas):
            raise ValueError(
                f"{type(head).__name__}.sigmas must be one number a denoising step, got {list(sigmas.shape)}: "
                "learned variances depend on the token and have no coupling by reflection; fix them, and say so"
            )
        if carry.shape != sigmas.shape:
            raise ValueError(f"{type(head).__name__}.carry has {list(carry.shape)} numbers for {len(sigmas)} steps")
        listed = tuple(sigmas.tolist())
        for step, sigma in enumerate(listed):
            if not 0 < sigma < float("inf"):
                last = " (the last one)" if step == len(listed) - 1 else ""
                raise ValueError(
                    f"all tokens, denoising step {step} of {len(listed)}{last}: sigma is {sigma:g}; a noiseless step "
                    "has no coupling: keep the model's own sigma_0 > 0 there, or use a sampler that adds noise"
                )
        return Schedule(listed, tuple(carry.tolist()))

    @property
    def steps(self) -> int:
        """Denoising steps."""
        return len(self.sigmas)

    def refuse_another_length(self, draft: "Schedule") -> None:
        """Refuse a draft of other steps: step t goes with step t.

        Raises:
            ValueError: The number of steps is another.
        """
        if draft.steps != self.steps:
            raise ValueError(
                f"the draft's chain has {draft.steps} denoising steps, the target's {self.steps}: chains of different "
                "lengths cannot be aligned"
            )

    def refuse_another(self, draft: "Schedule") -> None:
        """Refuse a draft of another schedule: step t is coupled with step t.

        Raises:
            ValueError: The number of steps, or a step's sigma, is another.
        """
        self.refuse_another_length(draft)
        for step, (q, p) in enumerate(zip(draft.sigmas, self.sigmas, strict=True)):
            if q != p:
                raise ValueError(
                    f"all tokens, denoising step {step} of {self.steps}: the draft's sigma is {q:g}, the target's "
                    f"{p:g}; reflection needs one covariance on both sides"
                )


def unrolled(
    start: Tensor,
    schedule: Schedule,
    mean_of: Callable[[Tensor, int], Tensor],
    follow: Callable[[int, Tensor, float], Tensor],
) -> Tensor:
    """Draws `[batch, node, 2 steps + 1, dim]` of a chain that opens with `start [batch, node, dim]`.

    Args:
        start: The first state.
        schedule: Its steps.
        mean_of: Mean of the next state, given a state and its step.
        follow: The next state, given the step, its mean and its sigma.
    """
    states, means = [start], []
    for step, sigma in enumerate(schedule.sigmas):
        means.append(mean_of(states[-1], step))
        states.append(follow(step, means[-1], sigma))
    return torch.stack([*states, *means], 2)


@cache
def _carried(carry: tuple[float, ...]) -> Tensor:
    """How much of each state's push arrives at each later one: `[steps + 1, steps + 1]`, lower triangular."""
    rows = [[math.prod(carry[start:end]) if start <= end else 0.0 for start in range(len(carry) + 1)]
            for end in range(len(carry) + 1)]  # fmt: skip
    return torch.tensor(rows, dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class Trajectory:
    """A chain of Gaussians around known means at every node; a draft's distribution only.

    Attributes:
        draws: `[batch, node, 2 steps + 1, dim]`: the states from the first noise to the token, then the means that all
            states but the first were drawn around.
        schedule: The chain's steps.
    """

    draws: Tensor
    schedule: Schedule

    @staticmethod
    def cat(distributions: "Sequence[Trajectory]") -> "Trajectory":
        """Trajectories of one schedule joined along the nodes."""
        for distribution in distributions[1:]:
            distributions[0].schedule.refuse_another(distribution.schedule)
        return Trajectory(
            torch.cat([distribution.draws for distribution in distributions], 1), distributions[0].schedule
        )

    @property
    def states(self) -> Tensor:
        """`[batch, node, steps + 1, dim]`."""
        return self.draws[:, :, : self.schedule.steps + 1]

    @property
    def means(self) -> Tensor:
        """`[batch, node, steps, dim]`: state t + 1 was drawn around mean t."""
        return self.draws[:, :, self.schedule.steps + 1 :]

    def draw(self, noise: Noise) -> Tensor:
        """Another trajectory around the same means: own noise, and what the state carries over follows it.

        Its distance from this one is linear in the noise, so that all steps are one product.
        """
        steps, device = self.schedule.steps, self.draws.device
        listed = self.schedule.sigmas, self.schedule.carry
        sigmas, carry = (torch.tensor(s, dtype=torch.float32, device=device)[:, None] for s in listed)
        fresh = noise.normal(steps + 1, self.draws.shape[-1])
        pushed = torch.cat([fresh[:, :, :1], self.means + sigmas * fresh[:, :, 1:]], 2) - self.states
        off = _carried(self.schedule.carry).to(device) @ pushed
        return torch.cat([self.states + off, self.means + carry * off[:, :, :-1]], 2)

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        raise TypeError("a trajectory is the distribution of a draft; a target's distribution is its DenoisingChain")

    def units(self, draws: Tensor) -> Tensor:
        return draws[:, :, self.schedule.steps]

    def with_draws(self, draws: Tensor) -> "Trajectory":
        return Trajectory(draws, self.schedule)

    def take(self, nodes: Tensor) -> "Trajectory":
        return Trajectory(take_nodes(self.draws, nodes), self.schedule)

    def confidence(self) -> Tensor:
        return torch.zeros(self.draws.shape[:2], dtype=torch.float32, device=self.draws.device)

    def finite(self) -> Tensor:
        return finite_nodes(self.draws)
