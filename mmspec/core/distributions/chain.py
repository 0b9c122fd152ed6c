"""Denoising chains: a token is the last state of T Gaussian steps whose means a head computes.

x_0 ~ N(0, I), then x_{t+1} ~ N(mean_t(x_t, condition), sigma_t²). Two chains are coupled by reflection at every step
(Bou-Rabee et al., 2020; De Bortoli et al., arXiv 2501.05370): they share their start, and each step's target state is
the draft's, or its mirror image. Given all that came before, each coupled state follows the target's step exactly, so
the whole trajectory follows the target's chain; the tokens are equal when the last states are. Coupling every step
brings states together again and again, and accepts far more than coupling the last one only (D = 1, 4, 16 of the
toy: .78 / .60 / .31 against .71 / .46 / .14).
Guarantee: y ~ p exactly. P(y = x) is not the maximum of the two tokens' distributions, which nobody can compute.

What it needs of a draft is, at every step, a state and the mean that it was drawn around: not where that mean comes
from. So a new slot of a window may be drafted without a single head evaluation, around the means of another slot
(`Trajectory.draw`): given that slot, these are known numbers, and the draft is a chain of Gaussians around them.

Refused: sigma <= 0 at any step (a noiseless step has no coupling: keep the model's sigma_0 in the last one),
variances that depend on the token (learned), drafts with other steps or sigmas.
Knobs: `ahead` (more: free draws take fewer calls of the head, one after another; `mmspec.core.distributions.ahead`);
the head's last sigma: larger accepts more and is another target.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.ahead import denoised_ahead
from mmspec.core.distributions.distribution import Distribution, finite_nodes, take_nodes, where_nodes
from mmspec.core.distributions.reflection import mirror
from mmspec.core.distributions.trajectory import Schedule, Trajectory, unrolled
from mmspec.core.noise import Lane, Noise

Tie = Callable[[int, Tensor, float], Tensor]
"""The next state where a draft is followed, given the step, the target's mean and sigma."""


class Head(Protocol):
    """A denoising head.

    Attributes:
        dim: Numbers of a token.
        sigmas: `[steps]`, all > 0, the noise that each step adds; the last one is the model's sigma_0. Read on the host
            every round: keep it on the CPU.

    A head may have `carry [steps]`: mean(x, step, c) = carry[step] · x + (a part that the network computes). Drafts
    around another slot's means then take over that part only, and follow their own state.
    One that denoises ahead has more: `mmspec.core.distributions.ahead.Foreseeing`.
    """

    dim: int
    sigmas: Tensor

    def mean(self, x: Tensor, step: int, condition: Tensor) -> Tensor:
        """Mean of the next state `[m, dim]` at denoising step 0 … steps - 1, given `x [m, dim]`, `condition [m, …]`."""
        ...


@dataclass(frozen=True)
class DenoisingChain:
    """A denoising chain at every node. Draws are whole trajectories, as in `Trajectory.draws`.

    Attributes:
        condition: `[batch, node, …]`: what the head is told.
        head: Computes the means; one evaluation a step, for all nodes together.
        ahead: Steps that free draws draft per call of the head; 0: none, a call a step.

    Raises:
        ValueError: The head cannot denoise ahead.
    """

    condition: Tensor
    head: Head
    ahead: int = 0

    def __post_init__(self) -> None:
        if self.ahead and not hasattr(self.head, "around"):
            raise ValueError(
                f"{type(self.head).__name__} has no `clean` and `around`: what it predicts cannot be kept for steps to "
                "come; use ahead=0"
            )

    @staticmethod
    def cat(distributions: "Sequence[DenoisingChain]") -> "DenoisingChain":
        """Chains of one head joined along the nodes."""
        assert all(distribution.head is distributions[0].head for distribution in distributions), (
            "chains of different heads cannot be joined"
        )
        return replace(
            distributions[0], condition=torch.cat([distribution.condition for distribution in distributions], 1)
        )

    @cached_property
    def schedule(self) -> Schedule:
        """The head's steps."""
        return Schedule.of(self.head)

    def draw(self, noise: Noise) -> Tensor:
        schedule, (rows, nodes) = self.schedule, self.condition.shape[:2]
        fresh = noise.normal(schedule.steps + 1, self.head.dim)
        if self.ahead:
            log_coins = -noise.lane(Lane.COIN).exponential(schedule.steps)
            condition, normals, logs = (t.flatten(0, 1) for t in (self.condition, fresh, log_coins))
            head: Any = self.head
            return denoised_ahead(head, schedule, condition, normals, logs, self.ahead).unflatten(0, (rows, nodes))
        pushes = self._pushes(fresh)
        return unrolled(fresh[:, :, 0], schedule, self._mean, lambda step, mean, sigma: mean + pushes[step])

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        """As in `Distribution`; `x` is the last state of the draft's own trajectory."""
        aligned = self._aligned(draft)
        return self._following(aligned, None, noise, self._reflected(aligned, noise))

    def draw_coupled(self, draft: Distribution, x: Tensor, follows: Tensor, noise: Noise) -> Tensor:
        """As in `Distribution`: the head is evaluated once a step, whoever is coupled and whoever free."""
        draft = self._padded(self._aligned(draft))
        follows = torch.nn.functional.pad(follows, (0, 1))
        return self._following(draft, follows, noise, self._reflected(draft, noise))

    def along(self, draft: Distribution, follows: Tensor, noise: Noise) -> Tensor:
        """Under the draft's own noise at every step, without coupling: for rules that test the last step only.

        The target's states and means at all steps; the tokens are practically never equal. `follows` as in
        `draw_coupled`. The draft's sigmas may be others.
        """
        own = self._trajectory(draft)
        self.schedule.refuse_another_length(own.schedule)
        padded = self._padded(own)
        ratios = [p / q for p, q in zip(self.schedule.sigmas, own.schedule.sigmas, strict=True)]

        def same(step: int, mean: Tensor, sigma: float) -> Tensor:
            return mean + ratios[step] * (padded.states[:, :, step + 1] - padded.means[:, :, step])

        return self._following(padded, torch.nn.functional.pad(follows, (0, 1)), noise, same)

    def units(self, draws: Tensor) -> Tensor:
        return draws[:, :, self.schedule.steps]

    def with_draws(self, draws: Tensor) -> Trajectory:
        return Trajectory(draws, self.schedule)

    def take(self, nodes: Tensor) -> "DenoisingChain":
        return replace(self, condition=take_nodes(self.condition, nodes))

    def confidence(self) -> Tensor:
        return torch.zeros(self.condition.shape[:2], dtype=torch.float32, device=self.condition.device)

    def finite(self) -> Tensor:
        return finite_nodes(self.condition)

    def fault(self, draws: Tensor, row: int, node: int) -> str:
        """What is wrong with the draw of a node: which denoising step."""
        if not self.condition[row, node].isfinite().all():
            return "the condition of the denoising head is not finite"
        steps = self.schedule.steps
        means = draws[row, node, steps + 1 :].isfinite().all(-1)
        if means.all():
            return ""
        return f"the latent of denoising step {int((~means).nonzero()[0])} of {steps} is not finite"

    def _mean(self, x: Tensor, step: int) -> Tensor:
        mean = self.head.mean(x.flatten(0, 1), step, self.condition.flatten(0, 1))
        return mean.to(x.dtype).reshape(x.shape)

    def _following(self, draft: Trajectory, follows: Tensor | None, noise: Noise, tie: Tie) -> Tensor:
        """Trajectories tied to the draft's where `follows [batch, node]`, else free; None: tied everywhere."""
        start = draft.states[:, :, 0]
        if follows is None:
            return unrolled(start, self.schedule, self._mean, tie)
        fresh = noise.normal(self.schedule.steps + 1, self.head.dim)
        pushes = self._pushes(fresh)

        def following(step: int, mean: Tensor, sigma: float) -> Tensor:
            return where_nodes(follows, tie(step, mean, sigma), mean + pushes[step])

        return unrolled(where_nodes(follows, start, fresh[:, :, 0]), self.schedule, self._mean, following)

    def _pushes(self, fresh: Tensor) -> Sequence[Tensor]:
        """What every step adds to its mean, of normals `[batch, node, steps + 1, dim]`."""
        sigmas = torch.tensor(self.schedule.sigmas, dtype=fresh.dtype, device=fresh.device)
        return (fresh[:, :, 1:] * sigmas[:, None]).unbind(2)

    @staticmethod
    def _reflected(draft: Trajectory, noise: Noise) -> Tie:
        # As `reflect`, with all that is known before the head runs computed once for all steps.
        states, around = draft.states[:, :, 1:].unbind(2), draft.means.unbind(2)
        off = (draft.states[:, :, 1:] - draft.means).unbind(2)
        sigmas = torch.tensor(draft.schedule.sigmas, dtype=torch.float32, device=draft.draws.device)
        bounds = (noise.lane(Lane.COIN).exponential(draft.schedule.steps) * sigmas * sigmas)[..., None].unbind(2)

        def tie(step: int, mean: Tensor, sigma: float) -> Tensor:
            keep, mirrored = mirror(off[step], around[step] - mean, bounds[step])
            return torch.where(keep, states[step], mean + mirrored)

        return tie

    def _aligned(self, draft: Distribution) -> Trajectory:
        """A draft that can be coupled: of the same schedule."""
        trajectory = self._trajectory(draft)
        self.schedule.refuse_another(trajectory.schedule)
        return trajectory

    @staticmethod
    def _trajectory(draft: Distribution) -> Trajectory:
        if not isinstance(draft, Trajectory):
            raise TypeError(
                f"a denoising chain is coupled with a draft that has its trajectory, `distribution.with_draws(draws)`; "
                f"got a {type(draft).__name__}"
            )
        return draft

    @staticmethod
    def _padded(draft: Trajectory) -> Trajectory:
        """With a node more, which follows nothing."""
        return Trajectory(torch.nn.functional.pad(draft.draws, (0, 0, 0, 0, 0, 1)), draft.schedule)
