"""Rotary position embeddings of frames: a cell's place in its frame, and the frame's number.

All of them are `[…, width / 2, 2]` cosines and sines of neighbouring pairs of channels, as
`mmspec.kits.pictures.models.rope.turn` takes them.
"""

import math

import torch
from torch import Tensor


def pixel_rotary(rows: int, columns: int, width: int, frequencies: int, most: float) -> Tensor:
    """Oasis's pixel frequencies: angles from -1 to 1 along each axis, times up to `most / 2` half turns.

    Args:
        rows: Rows of cells.
        columns: Columns of cells.
        width: Channels of a head; pairs beyond both axes' frequencies are not rotated.
        frequencies: Number of frequencies per axis; those of the row coordinate come first.
        most: Twice the largest frequency.

    Returns:
        `[rows · columns, width / 2, 2]` float32.
    """
    turns = torch.linspace(1.0, most / 2, frequencies, dtype=torch.float32) * math.pi
    row, column = (torch.linspace(-1, 1, n, dtype=torch.float32)[:, None] * turns for n in (rows, columns))
    both = [row[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1)]
    still = turns.new_zeros(rows, columns, width // 2 - 2 * frequencies)
    return _turned(torch.cat([*both, still], -1).flatten(0, 1))


def time_rotary(position: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """All pairs rotate with the frame's number: `[row, frame, width / 2, 2]` of `position [row, frame]`."""
    turns = base ** (-torch.arange(0, width, 2, device=position.device).float() / width)
    return _turned(position[..., None].float() * turns)


def frame_rotary(position: Tensor, rows: int, columns: int, width: int, base: float = 100.0) -> Tensor:
    """A quarter of a head's pairs rotates with the frame's number, the others with row and column.

    Args:
        position: `[row, frame]` numbers of the frames.
        rows: Rows of cells.
        columns: Columns of cells.
        width: Channels of a head, divisible by 16.
        base: Base of the frequencies; small, because frames are few and small.

    Returns:
        `[row, frame, rows · columns, width / 2, 2]` float32.
    """
    times, cells = width // 8, 3 * width // 16
    slow, fast = (base ** (-torch.arange(n, device=position.device).float() / n) for n in (times, cells))
    when = position[..., None, None].float() * slow  # [row, frame, 1, times]
    places = torch.arange(rows * columns, device=position.device).float()
    row, column = (places // columns)[:, None] * fast, (places % columns)[:, None] * fast
    shape = (*position.shape, rows * columns, -1)
    return _turned(torch.cat([when.expand(shape), row.expand(shape), column.expand(shape)], -1))


def _turned(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], -1)
