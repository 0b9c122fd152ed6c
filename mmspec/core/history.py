"""The tensor of a call's units: it has room for what comes soon, not for all that a large limit would allow."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.transfer import on_device

ROOM = 2**16
"""Units a row for which there is room at first; a call that fills them gets twice as many, and so on."""


def begun(prompt: Tensor, limit: int) -> Tensor:
    """The prompt `[batch, prompt, *unit]` with columns for new units, and a last one for what is not kept."""
    return torch.cat([prompt, prompt.new_zeros(len(prompt), min(limit, ROOM) + 1, *prompt.shape[2:])], 1)


def with_room(history: Tensor, prompt: int, new: int, limit: int) -> Tensor:
    """The history with columns for at least `new` units (or `limit`) behind the prompt; the same one if it has them."""
    room = history.shape[1] - prompt - 1
    if room >= min(new, limit):
        return history
    more = min(limit, max(new, 2 * room)) - room
    larger = torch.cat([history, history.new_zeros(len(history), more, *history.shape[2:])], 1)
    larger[:, prompt + room] = 0  # it was the last one
    return larger


def ends_of(ends: int | Sequence[int] | None, device: torch.device) -> Tensor:
    """End units as a tensor: none, one or several."""
    listed = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return on_device(listed, device, torch.int64)
