"""Transformer blocks of LlamaGen (Llama's, with rotary positions of a grid), with keys and values in the slot cache.

Names of weights are the published ones, so that official files load without renaming.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.kits.pictures.models.rope import turn


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
    """SwiGLU feed-forward layer."""

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
    """Attention mask `[rows, 1, length, length]` bool: causal; padding of the caption is seen by itself only.

    Args:
        rows: Rows of the batch.
        length: Positions, conditioning positions included.
        given: Conditioning positions.
        mask: `[rows, given]`: False at padding; None: no padding.
        device: Of the result.
    """
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    seen = causal.expand(rows, 1, length, length)
    if mask is None:
        return seen
    columns = F.pad(mask.bool(), (0, length - given), value=True)
    itself = torch.eye(length, dtype=torch.bool, device=device)
    return seen & columns[:, None, None] | itself
