"""Reflection: the maximal coupling of two Gaussians of one covariance, in closed form.

Bou-Rabee et al. (2020); De Bortoli et al. (arXiv 2501.05370). With e = (x - mean_q) / sigma and
z = (mean_q - mean_p) / sigma, keep x with probability min(1, exp((|e|^2 - |e + z|^2) / 2)); else mirror e in the
hyperplane orthogonal to z. Guarantee: y ~ p exactly; P(y = x) = 1 - TV, optimal, without a residual to sample.
"""

import torch
from torch import Tensor


def mirror(off: Tensor, apart: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Where x is kept, `[batch, node, 1]` bool, and its mirrored distance from the target's mean, `[batch, node, n]`.

    Args:
        off: x less the draft's mean, `[batch, node, n]`.
        apart: The draft's mean less the target's.
        bound: -log of a uniform, times sigma² where distances are not in units of sigma, `[batch, node, 1]`.
    """
    squared = (apart * apart).sum(-1, keepdim=True)
    along = (apart * off).sum(-1, keepdim=True)
    keep = torch.add(along, squared, alpha=0.5) < bound
    return keep, torch.addcmul(off, apart, along / squared.clamp(min=torch.finfo(apart.dtype).tiny), value=-2)


def reflect(x: Tensor, draft_mean: Tensor, mean: Tensor, sigma: float | Tensor, log_coin: Tensor) -> Tensor:
    """y ~ N(mean, sigma²), given x ~ N(draft_mean, sigma²): `[batch, node, *unit]`.

    Args:
        x: `[batch, node, *unit]`.
        draft_mean: The same shape.
        mean: The same shape.
        sigma: One number, `[batch, node, 1…]`, or one a dimension: one covariance on both sides.
        log_coin: Log of a uniform, `[batch, node]`.
    """
    e, z = (((a - b) / sigma).flatten(2) for a, b in ((x, draft_mean), (draft_mean, mean)))
    keep, mirrored = mirror(e, z, -log_coin[..., None])
    y = mean + sigma * mirrored.reshape_as(x)
    return torch.where(keep.reshape(*keep.shape[:2], *(1,) * (x.dim() - 2)), x, y)
