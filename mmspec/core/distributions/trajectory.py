"""Trajectories of denoising chains: the distribution of a draft, known without the head.

A trajectory is a chain of Gaussians around known means, and reflection needs no more of a draft. Another draw around
the same means (`draw`) needs no network: given the slot that the means came from, they are constants.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, finite_nodes, take_nodes
from mmspec.core.distributions.head import Head
from mmspec.core.noise import Noise
from mmspec.core.transfer import moved, on_device


@dataclass(frozen=True)
class Schedule:
    """The steps of a chain."""

    sigmas: tuple[float, ...]  # standard deviation of every step's noise; the last one is sigma_0
    # Factor of the state in every step's mean, whatever the condition; 0 where it is not known
    carry: tuple[float, ...]

    @staticmethod
    def of(head: Head) -> "Schedule":
        """The schedule of a denoising head."""
        sigmas, carry = (torch.as_tensor(s) for s in (head.sigmas, head.carry))
        if sigmas.dim() != 1 or not len(sigmas):
            raise ValueError(
                f"{type(head).__name__}.sigmas must be one number a denoising step, got {list(sigmas.shape)}: "
                "learned variances depend on the token and have no coupling by reflection; fix them"
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
        return len(self.sigmas)

    def refuse_another_length(self, draft: "Schedule") -> None:
        """Refuse a draft with another number of steps: step t is aligned with step t."""
        if draft.steps != self.steps:
            raise ValueError(
                f"the draft's chain has {draft.steps} denoising steps, the target's {self.steps}: chains of different "
                "lengths cannot be aligned"
            )

    def refuse_another(self, draft: "Schedule") -> None:
        """Refuse a draft of another schedule: step t is coupled with step t."""
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
    next_state: Callable[[int, Tensor, float], Tensor],
) -> Tensor:
    """Draws `[batch, node, 2 steps + 1, dim]` of a chain that begins with `start [batch, node, dim]`.

    `mean_of` gives the mean of the next state, of a state and its step; `next_state` draws it, of the step, its mean
    and its sigma.
    """
    states, means = [start], []
    for step, sigma in enumerate(schedule.sigmas):
        means.append(mean_of(states[-1], step))
        states.append(next_state(step, means[-1], sigma))
    return torch.stack([*states, *means], 2)


@cache
def _carried(carry: tuple[float, ...]) -> Tensor:
    """Factor with which a change of each state reaches each later one: `[steps + 1, steps + 1]`, lower triangular."""
    rows = [[math.prod(carry[start:end]) if start <= end else 0.0 for start in range(len(carry) + 1)]
            for end in range(len(carry) + 1)]  # fmt: skip
    return torch.tensor(rows, dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class Trajectory:
    """A chain of Gaussians around known means at every node; a draft's distribution only."""

    # `[batch, node, 2 steps + 1, dim]`: the states from the first noise to the token, then the means that all states
    # but the first were drawn around
    draws: Tensor
    schedule: Schedule  # the chain's steps

    @staticmethod
    def cat(distributions: "Sequence[Trajectory]") -> "Trajectory":
        """Trajectories of one schedule joined along the nodes."""
        schedule = distributions[0].schedule
        for distribution in distributions[1:]:
            schedule.refuse_another(distribution.schedule)
        return Trajectory(torch.cat([d.draws for d in distributions], 1), schedule)

    @property
    def states(self) -> Tensor:
        """`[batch, node, steps + 1, dim]`."""
        return self.draws[:, :, : self.schedule.steps + 1]

    @property
    def means(self) -> Tensor:
        """`[batch, node, steps, dim]`: state t + 1 was drawn around mean t."""
        return self.draws[:, :, self.schedule.steps + 1 :]

    def draw(self, noise: Noise) -> Tensor:
        """Another trajectory around the same means, with new noise; the carried-over part follows the new states.

        Its difference from this trajectory is linear in the noise, so that all steps are one matrix product.
        """
        steps, device = self.schedule.steps, self.draws.device
        schedule = self.schedule.sigmas, self.schedule.carry
        sigmas, carry = (on_device(s, device, torch.float32)[:, None] for s in schedule)
        normals = noise.normal(steps + 1, self.draws.shape[-1])
        change = torch.cat([normals[:, :, :1], self.means + sigmas * normals[:, :, 1:]], 2) - self.states
        total = moved(_carried(self.schedule.carry), device) @ change
        return torch.cat([self.states + total, self.means + carry * total[:, :, :-1]], 2)

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
