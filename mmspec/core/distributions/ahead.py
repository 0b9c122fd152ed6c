"""Denoising ahead: several steps of a chain per call of its head, drafted with the last prediction frozen.

De Bortoli et al. (arXiv 2501.05370, § 4). The clean token that the head last predicted is kept for the steps to come,
each of which then is a Gaussian around a mean that costs nothing. So some steps are drafted, the head is called once
for all of their states, and each step is coupled with its draft by reflection, up to the first that refuses. The newest
prediction is the best one, also where it was made for a state that was refused.
Guarantee: the trajectory follows the chain exactly. Noise has an address by step: what a refused draft would have used
further on was seen by nothing that is kept, and is used again.
Knob: `ahead`, steps drafted per call (more: fewer calls one after another, and more evaluations that are thrown away,
so that it pays where a call costs about the same for many states as for one). One host read a call.
"""

from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.reflection import reflect
from mmspec.core.distributions.trajectory import Schedule


class Foreseeing(Protocol):
    """A head (`mmspec.core.distributions.Head`) whose `mean` takes a step of each state, too, and whose prediction can
    be kept.

    `clean` and `around` are arithmetic, and inverse to each other; no network runs.
    """

    def mean(self, x: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Mean of the next state `[m, dim]`; `step` is one for all, or `[m]` int64."""
        ...

    def clean(self, x: Tensor, step: Tensor, mean: Tensor) -> Tensor:
        """The clean token `[m, dim]` that a mean stands for, after `x [m, dim]` at `step [m]`."""
        ...

    def around(self, x: Tensor, step: Tensor, clean: Tensor) -> Tensor:
        """The mean `[m, dim]` that stands for a clean token."""
        ...


def denoised_ahead(
    head: Foreseeing, schedule: Schedule, condition: Tensor, fresh: Tensor, log_coins: Tensor, ahead: int
) -> Tensor:
    """Trajectories `[m, 2 steps + 1, dim]`: states, then means, as `Trajectory.draws` has them.

    Args:
        head: Its head.
        schedule: Its steps.
        condition: `[m, …]`.
        fresh: Standard normal `[m, steps + 1, dim]`: the first state, then the noise of every step.
        log_coins: Logs of uniforms, `[m, steps]`.
        ahead: Steps to draft per call, at least 1.
    """
    walk = _Walk(head, schedule, condition, fresh, log_coins)
    walk.advance(0)  # there is no prediction yet
    while len(walk.rows):
        walk.advance(min(ahead, walk.most))
    return torch.cat([walk.states, walk.means], 1)


class _Walk:
    """Chains on their way, each at a step of its own; arguments as above."""

    def __init__(
        self, head: Foreseeing, schedule: Schedule, condition: Tensor, fresh: Tensor, log_coins: Tensor
    ) -> None:
        self.head, self.steps = head, schedule.steps
        self.condition, self.log_coins = condition, log_coins
        self.sigmas = torch.tensor(schedule.sigmas, dtype=fresh.dtype, device=fresh.device)
        self.pushes = fresh[:, 1:] * self.sigmas[:, None]
        self.states, self.means = fresh.clone(), torch.empty_like(fresh[:, 1:])
        self.clean = torch.empty_like(fresh[:, 0])
        self.at = torch.zeros(len(fresh), dtype=torch.int64, device=fresh.device)
        self.rows = torch.arange(len(fresh), device=fresh.device)
        self.most = self.steps - 1  # levels that any row has room for

    def advance(self, width: int) -> None:
        """Draft `width` steps, call the head, settle as many steps as stand, and one more."""
        rows, first = self.rows[:, None], self.at[self.rows][:, None]
        level = torch.arange(width + 1, device=rows.device)
        steps = (first + level).clamp(max=self.steps - 1)  # [row, level]
        x, around = self._drafted(rows, steps)
        told = self.condition[self.rows].repeat_interleave(width + 1, 0)
        means = self.head.mean(x.flatten(0, 1), steps.flatten(), told).to(x.dtype).view_as(x)
        before, last = steps[:, :-1], steps[:, -1:]
        sigma, log_coin = self.sigmas[before][..., None], self.log_coins[rows, before]
        coupled = reflect(x[:, 1:], around, means[:, :-1], sigma, log_coin)
        y = torch.cat([coupled, means[:, -1:] + self.pushes[rows, last]], 1)
        stands = (coupled == x[:, 1:]).all(-1) & (first + level[1:] < self.steps)
        settled = 1 + stands.cumprod(1).sum(1, keepdim=True)
        row, at = (level < settled).nonzero(as_tuple=True)
        self.states[self.rows[row], steps[row, at] + 1] = y[row, at]
        self.means[self.rows[row], steps[row, at]] = means[row, at]
        newest = torch.arange(len(x), device=rows.device), self._newest(settled[:, 0], width)
        self.clean[self.rows] = self.head.clean(x[newest], steps[newest], means[newest])
        self._arrive((first + settled)[:, 0])

    def _drafted(self, rows: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """States to evaluate, `[row, level, dim]`, and what all but the first were drawn around."""
        x, around, clean = [self.states[self.rows, steps[:, 0]]], [], self.clean[self.rows]
        pushes = self.pushes[rows, steps]
        for level in range(steps.shape[1] - 1):
            around.append(self.head.around(x[-1], steps[:, level], clean))
            x.append(around[-1] + pushes[:, level])
        states = torch.stack(x, 1)
        return states, torch.stack(around, 1) if around else states[:, :0]

    @staticmethod
    def _newest(settled: Tensor, width: int) -> Tensor:
        """The level whose prediction is kept: the refused state's. Those further on saw noise to be used again."""
        return settled.clamp(max=width)

    def _arrive(self, at: Tensor) -> None:
        """The chains are at other steps; those at the end are left."""
        self.at[self.rows] = at
        left = self.steps - at
        self.rows = self.rows[left > 0]
        self.most = max(int(left.max()) - 1, 0)
