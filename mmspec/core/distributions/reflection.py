"""Reflection: the maximal coupling of two Gaussians with the same covariance, in closed form.

Bou-Rabee et al. (2020); De Bortoli et al. (arXiv 2501.05370). With e = (x - mean_q) / sigma and
z = (mean_q - mean_p) / sigma, keep x with probability min(1, exp((|e|^2 - |e + z|^2) / 2)); else mirror e in the
hyperplane orthogonal to z. Guarantee: y ~ p exactly; P(y = x) = 1 - TV, the maximum, without a residual to sample.
"""

import torch
from torch import Tensor


def mirror(offset: Tensor, apart: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Where x is kept, `[batch, node, 1]` bool, and its mirrored offset from the target's mean, `[batch, node, n]`.

    Args:
        offset: x less the draft's mean, `[batch, node, n]`.
        apart: The draft's mean less the target's.
        bound: -log of a uniform, times sigma² if distances are not in units of sigma, `[batch, node, 1]`.
    """
    squared = (apart * apart).sum(-1, keepdim=True)
    along = (apart * offset).sum(-1, keepdim=True)
    keep = torch.add(along, squared, alpha=0.5) < bound
    return keep, torch.addcmul(offset, apart, along / squared.clamp(min=torch.finfo(apart.dtype).tiny), value=-2)


def reflect(x: Tensor, draft_mean: Tensor, mean: Tensor, sigma: float | Tensor, log_coin: Tensor) -> Tensor:
    """y ~ N(mean, sigma²), given x ~ N(draft_mean, sigma²): `[batch, node, *unit]`.

    Args:
        x: The draft, `[batch, node, *unit]`.
        draft_mean: The draft's mean, of the same shape.
        mean: The target's mean, of the same shape.
        sigma: Standard deviation of both: one number, `[batch, node, 1…]`, or one per dimension.
        log_coin: Log of a uniform, `[batch, node]`.
    """
    e, z = (((a - b) / sigma).flatten(2) for a, b in ((x, draft_mean), (draft_mean, mean)))
    keep, mirrored = mirror(e, z, -log_coin[..., None])
    y = mean + sigma * mirrored.reshape_as(x)
    return torch.where(keep.reshape(*keep.shape[:2], *(1,) * (x.dim() - 2)), x, y)
