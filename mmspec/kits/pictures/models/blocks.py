"""Transformer blocks of LlamaGen (Llama's, with rotary positions of a grid), with keys and values in the slot cache.

Names of weights are the published ones, so that official files load without renaming.

Half of a head's pairs rotates with the row, half with the column. Conditioning positions come before the grid.
LlamaGen's published weights expect cosine and sine 0 there: queries and keys vanish, and every cell attends to all
conditioning positions evenly. With `vanish=False` they are not rotated instead, so that cells can tell the words of a
caption apart. diffusers' rotary embeddings of grids know neither.
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def grid_rotary(grid: int, width: int, before: int, base: float = 10_000.0, vanish: bool = True) -> Tensor:
    """Cosines and sines `[before + grid², width / 2, 2]` float32 by position: `before` conditioning positions, then
    cells in raster order. A head's width is divisible by 4.
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


class Keys(Protocol):
    """The cache of one layer between passes: a layer of the slot cache, or of transformers."""

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of this pass; returns all visible ones: `[batch, head, slot, width]` each."""


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, eps=self.eps).type_as(x) * self.weight


class Attention(nn.Module):
    """Grouped-query attention; one matrix projects to queries, keys and values."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, dim // heads
        self.wqkv = nn.Linear(dim, (heads + 2 * kv_heads) * self.width, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor | None, keys: Keys | None) -> Tensor:
        heads = self.wqkv(x).unflatten(-1, (-1, self.width))  # [batch, node, heads of queries, keys, values, width]
        turning, value = heads.split([self.heads + self.kv_heads, self.kv_heads], 2)
        query, key = turn(turning, rotary).split([self.heads, self.kv_heads], 2)
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        if keys is not None:
            key, value = keys.update(key, value)
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    """Pre-norm attention, then pre-norm feed-forward, each with a residual connection."""

    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, kv_heads)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = RMSNorm(dim, eps)
        self.ffn_norm = RMSNorm(dim, eps)

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor | None, keys: Keys | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, mask, keys)
        return x + self.feed_forward(self.ffn_norm(x))


def visible(rows: int, length: int, given: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Attention mask `[rows, 1, length, length]` bool: causal; padding of the `given` conditioning positions (False in
    `mask [rows, given]`) is seen by itself only.
    """
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    seen = causal.expand(rows, 1, length, length)
    if mask is None:
        return seen
    columns = F.pad(mask.bool(), (0, length - given), value=True)
    itself = torch.eye(length, dtype=torch.bool, device=device)
    return seen & columns[:, None, None] | itself


def transformer_blocks(
    dim: int, layers: int, heads: int, kv_heads: int, multiple_of: int, eps: float, each: int = 4
) -> nn.ModuleList:
    """Blocks whose feed-forwards are 2/3 · 4 · dim wide, rounded up to a multiple."""
    if dim % heads or dim // heads % each:
        raise ValueError(f"{heads} heads do not divide a width of {dim} into widths that are multiples of {each}")
    hidden = -(-int(8 * dim / 3) // multiple_of) * multiple_of
    return nn.ModuleList(TransformerBlock(dim, heads, kv_heads, hidden, eps) for _ in range(layers))


def run_blocks(model: Any, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any) -> Tensor:
    """Hidden states of embedded positions `[batch, node, dim]`, as `mmspec.kits.pictures.raster.RasterModel.run`.

    The model has `layers` and `rotary`. Positions are `[batch, node]` (or `[1, node]`), conditioning first, then cells;
    the mask is `[batch, 1, node, slot]` bool, None: a node sees every slot. `keys` has the cache of each layer, or None
    for each.
    """
    model.rotary = model.rotary.to(x.device)
    rotary = model.rotary[position].expand(len(x), -1, -1, -1)
    for layer, kept in zip(model.layers, keys, strict=True):
        x = layer(x, rotary, mask, kept)
    return x


def teacher_forced(model: Any, given: Tensor, units: Tensor, mask: Tensor | None) -> Tensor:
    """Hidden states from which known units `[batch, n]` are predicted, behind a condition with its mask of padding."""
    x = torch.cat([given, model.embed(units[:, :-1])], 1)
    seen = visible(len(x), x.shape[1], given.shape[1], mask, x.device)
    hidden = run_blocks(model, x, torch.arange(x.shape[1], device=x.device)[None], seen, [None] * len(model.layers))
    return hidden[:, given.shape[1] - 1 :]
