"""Rotary positions of a grid: half of a head's pairs rotate with the row, half with the column.

Conditioning positions come before the grid. LlamaGen's published weights expect cosine and sine 0 there: queries and
keys vanish, and every cell attends to all conditioning positions evenly. With `vanish=False` they are not rotated
instead, so that cells can tell the words of a caption apart. diffusers' rotary embeddings of grids know neither.
"""

import torch
from torch import Tensor


def grid_rotary(grid: int, width: int, before: int, base: float = 10_000.0, vanish: bool = True) -> Tensor:
    """Cosines and sines by position.

    Args:
        grid: Cells per side; cells are in raster order.
        width: Width of a head, divisible by 4.
        before: Number of conditioning positions.
        base: Base of the frequencies.
        vanish: Whether queries and keys of conditioning positions vanish.

    Returns:
        `[before + grid², width / 2, 2]` float32.
    """
    frequency = base ** (-torch.arange(0, width // 2, 2).float() / (width // 2))  # [width / 4]
    angle = torch.arange(grid).float()[:, None] * frequency
    row, column = angle[:, None].expand(grid, grid, -1), angle[None].expand(grid, grid, -1)
    cells = torch.cat([row, column], -1).flatten(0, 1)  # [cell, width / 2]
    turned = torch.stack([cells.cos(), cells.sin()], -1)
    condition = turned.new_zeros(before, *turned.shape[1:])
    condition[..., 0] = 0.0 if vanish else 1.0
    return torch.cat([condition, turned])


def turn(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotate neighbouring pairs of `x [batch, node, head, width]` by `rotary [batch, node, width / 2, 2]`."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))  # a product of complex numbers is many times faster
    return torch.view_as_real(pairs * torch.view_as_complex(rotary)[:, :, None]).flatten(-2).type_as(x)
