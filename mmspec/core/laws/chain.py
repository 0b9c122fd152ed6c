"""Denoising chains: a token is the last state of T Gaussian steps whose means a head computes.

x_0 ~ N(0, I), then x_{t+1} ~ N(mean_t(x_t, condition), sigma_t²). Two chains are coupled by reflection at every step
(Bou-Rabee et al., 2020; De Bortoli et al., arXiv 2501.05370): they share their start, and each step's target state is
the draft's, or its mirror image. Given all that came before, each coupled state follows the target's step exactly, so
the whole trajectory follows the target's chain; the tokens are equal when the last states are. Coupling every step
brings states together again and again, and accepts far more than coupling the last one only (D = 1, 4, 16 of the
toy: .78 / .60 / .31 against .71 / .46 / .14).
Guarantee: y ~ p exactly. P(y = x) is not the maximum of the two tokens' laws, which nobody can compute.

What it needs of a draft is, at every step, a state and the mean that it was drawn around: not where that mean comes
from. So a new slot of a window may be drafted without a single head evaluation, around the means of another slot
(`Trajectory.draw`): given that slot, these are known numbers, and the draft is a chain of Gaussians around them.

Refused: sigma <= 0 at any step (a noiseless step has no coupling: keep the model's sigma_0 in the last one),
variances that depend on the token (learned), drafts with other steps or sigmas.
Knobs: none here; the head's last sigma: larger accepts more and is another target.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.laws.law import Law, finite_nodes, take_nodes, where_nodes
from mmspec.core.laws.reflection import reflect
from mmspec.core.laws.trajectory import Schedule, Trajectory, unrolled
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
    """

    condition: Tensor
    head: Head

    @staticmethod
    def cat(laws: "Sequence[DenoisingChain]") -> "DenoisingChain":
        """Chains of one head joined along the nodes."""
        assert all(law.head is laws[0].head for law in laws), "chains of different heads cannot be joined"
        return DenoisingChain(torch.cat([law.condition for law in laws], 1), laws[0].head)

    @property
    def schedule(self) -> Schedule:
        """The head's steps."""
        return Schedule.of(self.head)

    def draw(self, noise: Noise) -> Tensor:
        schedule = self.schedule
        fresh = noise.normal(schedule.steps + 1, self.head.dim)

        def free(step: int, mean: Tensor, sigma: float) -> Tensor:
            return mean + sigma * fresh[:, :, step + 1]

        return unrolled(fresh[:, :, 0], schedule, self._mean, free)

    def couple(self, draft: Law, x: Tensor, noise: Noise) -> Tensor:
        """As in `Law`; `x` is the last state of the draft's own trajectory."""
        return self._following(self._aligned(draft), None, noise, self._reflected(draft, noise))

    def draw_coupled(self, draft: Law, x: Tensor, follows: Tensor, noise: Noise) -> Tensor:
        """As in `Law`: the head is evaluated once a step, whoever is coupled and whoever free."""
        draft = self._padded(self._aligned(draft))
        follows = torch.nn.functional.pad(follows, (0, 1))
        return self._following(draft, follows, noise, self._reflected(draft, noise))

    def along(self, draft: Law, follows: Tensor, noise: Noise) -> Tensor:
        """Under the draft's own noise at every step, without coupling: for rules that test the last step only.

        The target's states and means at all steps; the tokens are practically never equal. `follows` as in
        `draw_coupled`.
        """
        padded = self._padded(self._aligned(draft))

        def same(step: int, mean: Tensor, sigma: float) -> Tensor:
            return mean + (padded.states[:, :, step + 1] - padded.means[:, :, step])

        return self._following(padded, torch.nn.functional.pad(follows, (0, 1)), noise, same)

    def units(self, draws: Tensor) -> Tensor:
        return draws[:, :, self.schedule.steps]

    def having(self, draws: Tensor) -> Trajectory:
        return Trajectory(draws, self.schedule)

    def take(self, nodes: Tensor) -> "DenoisingChain":
        return DenoisingChain(take_nodes(self.condition, nodes), self.head)

    def confidence(self) -> Tensor:
        return torch.zeros(self.condition.shape[:2], device=self.condition.device)

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
            return unrolled(start, draft.schedule, self._mean, tie)
        fresh = noise.normal(draft.schedule.steps + 1, self.head.dim)

        def following(step: int, mean: Tensor, sigma: float) -> Tensor:
            return where_nodes(follows, tie(step, mean, sigma), mean + sigma * fresh[:, :, step + 1])

        return unrolled(where_nodes(follows, start, fresh[:, :, 0]), draft.schedule, self._mean, following)

    @staticmethod
    def _reflected(draft: Law, noise: Noise) -> Tie:
        assert isinstance(draft, Trajectory)
        log_coins = -noise.lane(Lane.COIN).exponential(draft.schedule.steps)

        def tie(step: int, mean: Tensor, sigma: float) -> Tensor:
            state, around = draft.states[:, :, step + 1], draft.means[:, :, step]
            return reflect(state, around, mean, sigma, log_coins[..., step])

        return tie

    def _aligned(self, draft: Law) -> Trajectory:
        if not isinstance(draft, Trajectory):
            raise TypeError(
                f"a denoising chain is coupled with a draft that has its trajectory, `law.having(draws)`; "
                f"got a {type(draft).__name__}"
            )
        self.schedule.refuse_another(draft.schedule)
        return draft

    @staticmethod
    def _padded(draft: Trajectory) -> Trajectory:
        """With a node more, which follows nothing."""
        return Trajectory(torch.nn.functional.pad(draft.draws, (0, 0, 0, 0, 0, 1)), draft.schedule)
