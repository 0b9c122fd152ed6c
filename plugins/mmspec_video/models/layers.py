"""Layers of diffusion transformers over frames: time embedding, adaptive norms, patches in and out, rotary positions.

Rotary positions are a cell's place in its frame and the frame's number: `[…, width / 2, 2]` cosines and sines of
neighbouring pairs of channels, as `mmspec.kits.pictures.models.blocks.turn` takes them.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

EPS = 1e-6
FREQUENCIES = 256


class TimeEmbedding(nn.Module):
    """Sinusoids of the time through an MLP; its weights have DiT's keys (Peebles & Xie, arXiv 2212.09748)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, time: Tensor) -> Tensor:
        """`[row, frame, dim]` of `time [row, frame]`, which is of the order of 1,000."""
        half = FREQUENCIES // 2
        turns = torch.exp(-math.log(10_000) / half * torch.arange(half, dtype=torch.float32, device=time.device))
        angles = time[..., None].float() * turns
        return self.mlp(torch.cat([angles.cos(), angles.sin()], -1).to(next(self.parameters()).dtype))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int, approximate: str = "tanh") -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.act = nn.GELU(approximate=approximate)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention output `[row, node, dim]` of queries, keys and values `[row, node, head, width]`."""
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def plain_norm(dim: int) -> nn.LayerNorm:
    """A layer norm without weights; the condition provides scale and shift."""
    return nn.LayerNorm(dim, elementwise_affine=False, eps=EPS)


def modulation(dim: int, parts: int) -> nn.Sequential:
    """From a frame's condition `[…, dim]` to `parts` vectors: `[…, parts · dim]`."""
    return nn.Sequential(nn.SiLU(), nn.Linear(dim, parts * dim))


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scale and shift `x [row, frame, cell, dim]` by vectors `[row, frame, dim]` that all cells of a frame share."""
    return x * (1 + scale[:, :, None]) + shift[:, :, None]


class FinalLayer(nn.Module):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.norm_final = plain_norm(dim)
        self.linear = nn.Linear(dim, outputs)
        self.adaLN_modulation = modulation(dim, 2)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.linear(modulated(self.norm_final(x), *self.adaLN_modulation(condition).chunk(2, -1)))


class PatchEmbed(nn.Module):
    """Patches of frames as cells in raster order."""

    def __init__(self, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        """`[row, frame, cell, dim]` of `x [row, frame, channel, height, width]`."""
        cells = self.proj(x.flatten(0, 1)).flatten(2).transpose(1, 2)
        return cells.unflatten(0, x.shape[:2])


def unpatchified(x: Tensor, rows: int, patch: int) -> Tensor:
    """`[…, channel, height, width]` of `x […, cell, patch · patch · channel]`, cells in raster order."""
    return rearrange(x, "... (h w) (p q c) -> ... c (h p) (w q)", h=rows, p=patch, q=patch)


def pixel_rotary(rows: int, columns: int, width: int, frequencies: int, most: float) -> Tensor:
    """Oasis's pixel frequencies `[rows · columns, width / 2, 2]`: angles from -1 to 1 along each axis, rows first,
    times up to `most / 2` half turns; pairs of a head's channels beyond both axes' frequencies are not rotated.
    """
    turns = torch.linspace(1.0, most / 2, frequencies, dtype=torch.float32) * math.pi
    row, column = (torch.linspace(-1, 1, n, dtype=torch.float32)[:, None] * turns for n in (rows, columns))
    both = [row[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1)]
    still = turns.new_zeros(rows, columns, width // 2 - 2 * frequencies)
    return _turned(torch.cat([*both, still], -1).flatten(0, 1))


def time_rotary(position: Tensor, width: int) -> Tensor:
    """All pairs rotate with the frame's number: `[row, frame, width / 2, 2]` of `position [row, frame]`."""
    turns = 10_000.0 ** (-torch.arange(0, width, 2, device=position.device).float() / width)
    return _turned(position[..., None].float() * turns)


def frame_rotary(position: Tensor, rows: int, columns: int, width: int, base: float = 100.0) -> Tensor:
    """`[row, frame, rows · columns, width / 2, 2]`: a quarter of a head's pairs (16 divides its width) rotates with the
    frame's number `[row, frame]`, the others with row and column; the base is small, because frames are few and small.
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
