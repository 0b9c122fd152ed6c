"""Whether pictures move as the actions say: after a turn to the left they move to the right, and the other way round.

PSNR cannot tell: a world that ignores the player may be close to the simulator's frames, too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

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
