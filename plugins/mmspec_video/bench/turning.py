"""Do walls move as the actions say? Whoever turns left sees them move to the right, and the other way round.

PSNR cannot tell: a world that goes on without the player's consent may be near the simulator's picture, too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MOST = 14
"""Pixels that a picture moves in a frame, at most; whoever turns moves it by about 6."""
SHOWS = 2 / 255
"""How much nearer, of 1, the picture before must be where it has moved to: a plain wall does not show that it moves."""
WAYS = {"left": 1, "right": -1}
"""Where pictures move behind actions of these names; 1 is to the right."""


def moved(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """How far pictures have moved to the right.

    Args:
        before: `[…, colour, height, width]` in [0, 1].
        after: The same, a frame later.

    Returns:
        Pixels `[…]` int64, and `[…]` bool: whether they show it.
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
    """Share of the frames behind a turn that moved the right way, of those that show where they moved.

    Args:
        frames: `[…, n, colour, height, width]` in [0, 1].
        actions: `[…, n - 1]` int64: what led from each to the next.
        names: Of the actions, by number.

    Returns:
        None, where no frame shows it.
    """
    by, shows = moved(frames[..., :-1, :, :, :], frames[..., 1:, :, :, :])
    way = torch.tensor([WAYS.get(name, 0) for name in names], device=actions.device)[actions]
    counts = shows & (way != 0)
    return float((by.sign() == way)[counts].float().mean()) if counts.any() else None
