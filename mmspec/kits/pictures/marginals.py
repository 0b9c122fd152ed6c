"""The shares of picture and of noise in a state of a diffusers scheduler."""

from typing import Any

import torch
from torch import Tensor


def marginal(scheduler: Any, index: int) -> tuple[Tensor, Tensor]:
    """(a, s) of the state a x0 + s noise before step `index`; behind the last step, (1, 0)."""
    if index == len(scheduler.timesteps):
        return torch.ones(()), torch.zeros(())
    if not hasattr(scheduler, "sigmas"):
        kept = scheduler.alphas_cumprod[int(scheduler.timesteps[index])]
        return kept**0.5, (1 - kept) ** 0.5
    sigma = scheduler.sigmas[index]
    if hasattr(scheduler, "_sigma_to_alpha_sigma_t"):
        of_solver: tuple[Tensor, Tensor] = scheduler._sigma_to_alpha_sigma_t(sigma)
        return of_solver
    return (1 - sigma if type(scheduler).__name__.startswith("FlowMatch") else torch.ones(())), sigma
