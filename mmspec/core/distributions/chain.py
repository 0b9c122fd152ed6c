"""Denoising chains: a token is the last state of T Gaussian steps whose means a head computes.

x_0 ~ N(0, I), then x_{t+1} ~ N(mean_t(x_t, condition), sigma_t²). Two chains are coupled by reflection at every step
(Bou-Rabee et al., 2020; De Bortoli et al., arXiv 2501.05370): they share their first state, and each next state of the
target is the draft's, or its mirror image. Given the states before it, each coupled state follows the target's step
exactly, so the whole trajectory follows the target's chain; the tokens are equal when the last states are. Coupling
every step brings states together again and again, and accepts far more than coupling the last step only (a toy of
D = 1, 4, 16: .78 / .60 / .31 against .71 / .46 / .14).
Guarantee: y ~ p exactly. P(y = x) is not the maximum, 1 - TV of the two tokens' distributions, which is intractable.

A draft only has to know, at every step, a state and the mean that it was drawn around; where that mean comes from does
not matter. So a new slot of a window can be drafted without a head evaluation, around the means of another slot
(`Trajectory.draw`): given that slot, these means are constants, and the draft is a chain of Gaussians around them.

Refused: sigma <= 0 at any step (a noiseless step has no coupling: keep the model's sigma_0 in the last one), variances
that depend on the token (learned), drafts with another number of steps or other sigmas.
Knobs: `ahead` (larger: free draws need fewer sequential calls of the head; `mmspec.core.distributions.ahead`); the
head's last sigma (larger: accepts more, and is another target).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.distributions.ahead import denoised_ahead
from mmspec.core.distributions.distribution import Distribution, finite_nodes, take_nodes, where_nodes
from mmspec.core.distributions.head import Head, PredictsClean
from mmspec.core.distributions.reflection import mirror
from mmspec.core.distributions.trajectory import Schedule, Trajectory, unrolled
from mmspec.core.noise import Noise, Substream
from mmspec.core.transfer import on_device

NextState = Callable[[int, Tensor, float], Tensor]
"""The next state, given the step, its mean and its sigma."""


@dataclass(frozen=True)
class DenoisingChain:
    """A denoising chain at every node. Draws are whole trajectories, as in `Trajectory.draws`."""

    condition: Tensor  # what the head is conditioned on, `[batch, node, …]`
    head: Head  # computes the means; one evaluation per step, for all nodes together
    ahead: int = 0  # steps that free draws draft per call of the head; 0: one call per step

    def __post_init__(self) -> None:
        if self.ahead and not isinstance(self.head, PredictsClean):
            raise ValueError(
                f"{type(self.head).__name__} has no `clean` and `around`: its prediction cannot be reused for later "
                "steps; use ahead=0"
            )

    @staticmethod
    def cat(distributions: "Sequence[DenoisingChain]") -> "DenoisingChain":
        """Chains of one head joined along the nodes."""
        first = distributions[0]
        assert all(d.head is first.head for d in distributions), "chains of different heads cannot be joined"
        return replace(first, condition=torch.cat([d.condition for d in distributions], 1))

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule.of(self.head)

    def draw(self, noise: Noise) -> Tensor:
        schedule, (rows, nodes) = self.schedule, self.condition.shape[:2]
        normals = noise.normal(schedule.steps + 1, self.head.dim)
        if self.ahead:
            assert isinstance(self.head, PredictsClean)
            log_coins = -noise.substream(Substream.COIN).exponential(schedule.steps)
            condition, flat, logs = (t.flatten(0, 1) for t in (self.condition, normals, log_coins))
            draws = denoised_ahead(self.head, schedule, condition, flat, logs, self.ahead)
            return draws.view(rows, nodes, *draws.shape[1:])
        scaled = self._scaled_noise(normals)
        return unrolled(normals[:, :, 0], schedule, self._mean, lambda step, mean, sigma: mean + scaled[step])

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        """As in `Distribution`; `x` is the last state of the draft's own trajectory."""
        trajectory = self._same_schedule(draft)
        return self._following(trajectory, None, noise, self._reflected(trajectory, noise))

    def draw_coupled(self, draft: Distribution, x: Tensor, follows: Tensor, noise: Noise) -> Tensor:
        """As in `CouplesAtOnce`: one head evaluation per step serves coupled and free nodes."""
        trajectory = self._padded(self._same_schedule(draft))
        follows = torch.nn.functional.pad(follows, (0, 1))
        return self._following(trajectory, follows, noise, self._reflected(trajectory, noise))

    def along(self, draft: Distribution, follows: Tensor, noise: Noise) -> Tensor:
        """The target's states and means under the draft's own noise, uncoupled, for rules that test the last step only.

        The tokens are practically never equal. `follows` as in `draw_coupled`. The draft's sigmas may differ.
        """
        own = self._trajectory(draft)
        self.schedule.refuse_another_length(own.schedule)
        padded = self._padded(own)
        ratios = [p / q for p, q in zip(self.schedule.sigmas, own.schedule.sigmas, strict=True)]

        def same_noise(step: int, mean: Tensor, sigma: float) -> Tensor:
            return mean + ratios[step] * (padded.states[:, :, step + 1] - padded.means[:, :, step])

        return self._following(padded, torch.nn.functional.pad(follows, (0, 1)), noise, same_noise)

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
        """The fault of the draw of a node: the condition, or the first denoising step that is not finite."""
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

    def _following(self, draft: Trajectory, follows: Tensor | None, noise: Noise, tied: NextState) -> Tensor:
        """Trajectories tied to the draft's where `follows [batch, node]`, free elsewhere; None: tied everywhere."""
        start = draft.states[:, :, 0]
        if follows is None:
            return unrolled(start, self.schedule, self._mean, tied)
        normals = noise.normal(self.schedule.steps + 1, self.head.dim)
        scaled = self._scaled_noise(normals)

        def next_state(step: int, mean: Tensor, sigma: float) -> Tensor:
            return where_nodes(follows, tied(step, mean, sigma), mean + scaled[step])

        return unrolled(where_nodes(follows, start, normals[:, :, 0]), self.schedule, self._mean, next_state)

    def _scaled_noise(self, normals: Tensor) -> Sequence[Tensor]:
        """The numbers that every step adds to its mean, of normals `[batch, node, steps + 1, dim]`."""
        sigmas = on_device(self.schedule.sigmas, normals.device, normals.dtype)
        return (normals[:, :, 1:] * sigmas[:, None]).unbind(2)

    @staticmethod
    def _reflected(draft: Trajectory, noise: Noise) -> NextState:
        # As `reflect`, but everything that is known before the head runs is computed once for all steps.
        states, means = draft.states[:, :, 1:].unbind(2), draft.means.unbind(2)
        offsets = (draft.states[:, :, 1:] - draft.means).unbind(2)
        sigmas = on_device(draft.schedule.sigmas, draft.draws.device, torch.float32)
        bounds = (noise.substream(Substream.COIN).exponential(draft.schedule.steps) * sigmas * sigmas)[
            ..., None
        ].unbind(2)

        def next_state(step: int, mean: Tensor, sigma: float) -> Tensor:
            keep, mirrored = mirror(offsets[step], means[step] - mean, bounds[step])
            return torch.where(keep, states[step], mean + mirrored)

        return next_state

    def _same_schedule(self, draft: Distribution) -> Trajectory:
        """The draft's trajectory, which must have the target's schedule."""
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
        """With one more node at the end: the last node has no drafted child."""
        return Trajectory(torch.nn.functional.pad(draft.draws, (0, 0, 0, 0, 0, 1)), draft.schedule)
