"""Denoising ahead: several steps of a denoising chain per call of its head, drafted from a frozen prediction.

De Bortoli et al. (arXiv 2501.05370, § 4). The clean token that the head predicted last is kept for the next steps; each
of these steps is then a Gaussian whose mean needs no network. So some steps are drafted, the head is called once for
all of their states, and each step is coupled with its draft by reflection, up to the first one that is refused. The
newest prediction is always kept, also if it was made for a state that was refused.
Guarantee: the trajectory follows the chain exactly. Noise is addressed by step: the noise of steps behind a refused
one influenced nothing that is kept, so it is used again.
Knob: `ahead`, steps drafted per call (larger: fewer sequential calls, and more evaluations that are discarded; it pays
where a call for many states costs about as much as a call for one). One host read per call that has drafts.
"""

import torch
from torch import Tensor

from mmspec.core.distributions.head import PredictsClean
from mmspec.core.distributions.reflection import reflect
from mmspec.core.distributions.trajectory import Schedule
from mmspec.core.transfer import on_device


def denoised_ahead(
    head: PredictsClean, schedule: Schedule, condition: Tensor, normals: Tensor, log_coins: Tensor, ahead: int
) -> Tensor:
    """Trajectories `[m, 2 steps + 1, dim]`: states, then means, as in `Trajectory.draws`.

    Args:
        head: The denoising head.
        schedule: The head's steps.
        condition: What the head is conditioned on, `[m, …]`.
        normals: Standard normal `[m, steps + 1, dim]`: the first state, then the noise of every step.
        log_coins: Logs of uniforms, `[m, steps]`.
        ahead: Steps to draft per call, at least 1.
    """
    chains = _Chains(head, schedule, condition, normals, log_coins)
    chains.advance(0)  # there is no prediction yet
    while chains.left:
        chains.advance(ahead)
    return torch.cat([chains.states[:, :-1], chains.means[:, :-1]], 1)


class _Chains:
    """Chains that are at different steps; arguments as in `denoised_ahead`."""

    def __init__(
        self, head: PredictsClean, schedule: Schedule, condition: Tensor, normals: Tensor, log_coins: Tensor
    ) -> None:
        self.head, self.steps = head, schedule.steps
        self.condition, self.log_coins = condition, log_coins
        self.sigmas = on_device(schedule.sigmas, normals.device, normals.dtype)
        self.scaled_noise = normals[:, 1:] * self.sigmas[:, None]
        # The last entry of both is scratch: it takes what is not kept, so that no shape depends on data.
        self.states, self.means = torch.cat([normals, normals[:, :1]], 1), torch.empty_like(normals)
        self.clean = torch.empty_like(normals[:, 0])
        self.at = torch.zeros(len(normals), dtype=torch.int64, device=normals.device)  # each chain's step
        self.rows = torch.arange(len(normals), device=normals.device)  # chains that are not finished
        self.left = [self.steps] * len(normals)  # each unfinished chain's steps that are left, on the host

    def advance(self, ahead: int) -> None:
        """Draft `ahead` steps, or all but a chain's last one, call the head, keep the accepted steps and one more."""
        rows, first = self.rows[:, None], self.at[self.rows][:, None]
        width, drafted = min(ahead, max(self.left) - 1), (self.steps - 1 - first).clamp(max=ahead)
        level = torch.arange(width + 1, device=rows.device)
        steps = (first + level).clamp(max=self.steps - 1)  # [row, level]
        x, draft_means = self._drafted(rows, steps)
        condition = self.condition[self.rows].repeat_interleave(width + 1, 0)
        means = self.head.mean(x.flatten(0, 1), steps.flatten(), condition).to(x.dtype).view_as(x)
        before = steps[:, :-1]
        sigma, log_coin = self.sigmas[before][..., None], self.log_coins[rows, before]
        coupled = reflect(x[:, 1:], draft_means, means[:, :-1], sigma, log_coin)
        accepted = (coupled == x[:, 1:]).all(-1) & (level[1:] <= drafted)
        # A step behind a chain's own drafts is drawn freely, whatever the other chains draft.
        free = means + self.scaled_noise[rows, steps]
        y = torch.where((level < drafted)[..., None], torch.cat([coupled, free[:, -1:]], 1), free)
        count = 1 + accepted.cumprod(1).sum(1, keepdim=True)
        kept = level < count
        self.states[rows, torch.where(kept, steps + 1, self.steps + 1)] = y
        self.means[rows, torch.where(kept, steps, self.steps)] = means
        newest = torch.arange(len(x), device=rows.device), self._newest(count[:, 0], width)
        self.clean[self.rows] = self.head.clean(x[newest], steps[newest], means[newest])
        self.at[self.rows] = (first + count)[:, 0]
        # Without drafts, every chain took one step, and the host need not wait for the count.
        taken = count[:, 0].tolist() if width else [1] * len(self.left)
        left = [steps - new for steps, new in zip(self.left, taken, strict=True)]
        going = [place for place, steps in enumerate(left) if steps]
        if len(going) < len(left):  # chains that are finished leave
            self.rows = self.rows[on_device(going, rows.device, torch.int64)]
        self.left = [left[place] for place in going]

    def _drafted(self, rows: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """States to evaluate, `[row, level, dim]`, and the means that all but the first were drawn around."""
        x, means, clean = [self.states[self.rows, steps[:, 0]]], [], self.clean[self.rows]
        noise = self.scaled_noise[rows, steps]
        for level in range(steps.shape[1] - 1):
            means.append(self.head.around(x[-1], steps[:, level], clean))
            x.append(means[-1] + noise[:, level])
        states = torch.stack(x, 1)
        return states, torch.stack(means, 1) if means else states[:, :0]

    @staticmethod
    def _newest(count: Tensor, width: int) -> Tensor:
        """The level whose prediction is kept: the refused state's. Later levels saw noise that will be used again."""
        return count.clamp(max=width)
