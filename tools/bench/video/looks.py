"""How close frames are to the simulator's, and whether they move as the actions say.

PSNR, and SSIM (Wang et al., IEEE Trans. Image Process. 13(4), 2004), of frames `[n, colour, height, width]` in [-1, 1].
A world has more than one future, and an uncertain model scores best with blurred frames: both numbers fall with the
distance ahead, whatever the method. Neither can tell whether a world listens to the player, since one that ignores him
may be close to the simulator's frames, too: after a turn to the left pictures move to the right, and the other way
round.
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


MOST = 14
"""Largest shift between two frames, in pixels; a turn shifts by about 6."""
SHOWS = 2 / 255
"""Least improvement of the mean absolute difference by the best shift; a plain wall does not show that it moves."""
WAYS = {"left": 1, "right": -1}
"""Direction in which pictures move after actions of these names; 1 is to the right."""


def moved(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Shift of pictures to the right.

    Args:
        before: `[…, colour, height, width]` in [0, 1].
        after: The next frames, of the same shape.

    Returns:
        Pixels `[…]` int64; and `[…]` bool: whether the pictures show that they moved.
    """
    width = before.shape[-1]
    most = min(MOST, width // 2)

    def apart(by: int) -> Tensor:
        right, left = max(by, 0), max(-by, 0)
        difference = after[..., right : width - left] - before[..., left : width - right]
        return difference.abs().mean((-3, -2, -1))

    away = torch.stack([apart(by) for by in range(-most, most + 1)])
    nearest = away.min(0)
    return nearest.indices - most, away[most] - nearest.values > SHOWS


def turned_as_told(frames: Tensor, actions: Tensor, names: Sequence[str]) -> float | None:
    """Share of the frames after a turn that moved the right way, among those that show that they moved.

    Args:
        frames: `[…, n, colour, height, width]` in [0, 1].
        actions: `[…, n - 1]` int64: the actions between them.
        names: Names of the actions, by number.

    Returns:
        The share; None where no frame shows that it moved.
    """
    by, shows = moved(frames[..., :-1, :, :, :], frames[..., 1:, :, :, :])
    way = torch.tensor([WAYS.get(name, 0) for name in names], device=actions.device)[actions]
    counts = shows & (way != 0)
    return float((by.sign() == way)[counts].float().mean()) if counts.any() else None
