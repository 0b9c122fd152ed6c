"""Reflection: the maximal coupling of two Gaussians of one covariance, in closed form.

Bou-Rabee et al. (2020); De Bortoli et al. (arXiv 2501.05370). With e = (x - mean_q) / sigma and
z = (mean_q - mean_p) / sigma, keep x with probability min(1, exp((|e|^2 - |e + z|^2) / 2)); else mirror e in the
hyperplane orthogonal to z. Guarantee: y ~ p exactly; P(y = x) = 1 - TV, optimal, without a residual to sample.
"""

import torch
from torch import Tensor


def reflect(x: Tensor, draft_mean: Tensor, mean: Tensor, sigma: float | Tensor, log_coin: Tensor) -> Tensor:
    """y ~ N(mean, sigma²), given x ~ N(draft_mean, sigma²): `[batch, node, *unit]`.

    Args:
        x: `[batch, node, *unit]`.
        draft_mean: The same shape.
        mean: The same shape.
        sigma: One number, or `[batch, node, 1…]`: one covariance on both sides.
        log_coin: Log of a uniform, `[batch, node]`.
    """
    e = ((x - draft_mean) / sigma).flatten(2)
    z = ((draft_mean - mean) / sigma).flatten(2)
    squared = (z * z).sum(-1, keepdim=True)
    along = (z * e).sum(-1, keepdim=True)
    keep = log_coin[..., None] < -(along + squared / 2)
    mirrored = e - 2 * z * along / squared.clamp(min=torch.finfo(z.dtype).tiny)
    y = mean + sigma * mirrored.reshape_as(x)
    return torch.where(keep.reshape(*keep.shape[:2], *(1,) * (x.dim() - 2)), x, y)
