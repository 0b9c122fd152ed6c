"""How near made frames are to the simulator's: PSNR, and SSIM (Wang et al., IEEE Trans. Image Process. 13(4), 2004).

Frames are `[n, colour, height, width]` in [-1, 1]. A world has more than one future, and a model that is unsure does
best by being blurred: both numbers fall the further ahead one looks, whatever the method.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH, SIGMA = 11, 1.5
"""Of SSIM's Gaussian window, in pixels, as published."""
STEADY = (0.01, 0.03)
"""SSIM's K1 and K2: they keep quotients of small numbers steady."""


def psnr(made: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, `[n]`; frames that are equal to 8 bits have that of 8 bits."""
    error = (made - truth).square().flatten(1).mean(1) / 4
    return -10 * error.clamp(min=1 / 255**2 / 12).log10()


def ssim(made: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity `[n]`, mean over colours and over the places where the whole window fits (eq. 13)."""
    size = min(WIDTH, *made.shape[-2:])
    bell = torch.exp(-((torch.arange(size) - (size - 1) / 2) ** 2) / (2 * SIGMA**2)).to(made)
    window = (bell[:, None] * bell / bell.sum() ** 2)[None, None]

    def local(x: Tensor) -> Tensor:
        return F.conv2d(x.flatten(0, 1)[:, None], window).unflatten(0, x.shape[:2])

    x, y = (made + 1) / 2, (truth + 1) / 2
    mean_x, mean_y = local(x), local(y)
    var_x, var_y = local(x * x) - mean_x**2, local(y * y) - mean_y**2
    both = local(x * y) - mean_x * mean_y
    c1, c2 = (k**2 for k in STEADY)
    index = (2 * mean_x * mean_y + c1) * (2 * both + c2) / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return index.flatten(1).mean(1)


def fidelity(made: Tensor, truth: Tensor, ahead: Sequence[int]) -> dict[str, float]:
    """`psnr_n` and `ssim_n`, n frames ahead, means over tasks.

    Args:
        made: Frames `[task, new, colour, height, width]`.
        truth: The simulator's.
        ahead: Every n.
    """
    found = {}
    for name, measure in (("psnr", psnr), ("ssim", ssim)):
        for n in ahead:
            found[f"{name}_{n}"] = round(float(measure(made[:, n - 1], truth[:, n - 1]).mean()), 4)
    return found
