"""How close frames are to the simulator's: PSNR, and SSIM (Wang et al., IEEE Trans. Image Process. 13(4), 2004).

Frames are `[n, colour, height, width]` in [-1, 1]. A world has more than one future, and an uncertain model scores best
with blurred frames: both numbers fall with the distance ahead, whatever the method.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

WINDOW = 11
"""Width of SSIM's Gaussian window of sigma 1.5, in pixels, as published."""


def psnr(frames: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, `[n]`, at most that of frames which are equal to 8 bits."""
    error = (frames - truth).square().flatten(1).mean(1) / 4
    return -10 * error.clamp(min=1 / 255**2 / 12).log10()


def ssim(frames: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity `[n]`: the mean over colours and over positions where the whole window fits (eq. 13).

    Raises:
        ValueError: scikit-image is not installed.
    """
    similarity, sides = structural_similarity(), frames.shape[-2:]
    pairs = zip(*(((x + 1) / 2).double().cpu().numpy() for x in (frames, truth)), strict=True)
    how = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1, "channel_axis": 0}
    how["win_size"] = min(WINDOW, *(side - 1 + side % 2 for side in sides))
    return torch.tensor([similarity(a, b, **how) for a, b in pairs])


def structural_similarity() -> Callable[..., Any]:
    """The function of scikit-image.

    Raises:
        ValueError: scikit-image is not installed.
    """
    try:
        from skimage.metrics import structural_similarity as similarity
    except ImportError as error:
        raise ValueError("SSIM needs scikit-image, which is not installed: pip install -e '.[tools]'") from error
    return similarity


def fidelity(frames: Tensor, truth: Tensor, ahead: Sequence[int]) -> dict[str, float]:
    """`psnr_n` and `ssim_n`, n frames ahead, means over tasks.

    Args:
        frames: `[task, new, colour, height, width]`.
        truth: The simulator's frames, of the same shape.
        ahead: The distances n.
    """
    measures = {"psnr": psnr, "ssim": ssim}
    return {
        f"{name}_{n}": round(float(measure(frames[:, n - 1], truth[:, n - 1]).mean()), 4)
        for name, measure in measures.items()
        for n in ahead
    }
