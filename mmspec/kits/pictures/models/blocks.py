"""Blocks of a causal transformer whose keys the core's slot cache keeps: Llama's, as LlamaGen has them.

Names of weights are LlamaGen's published ones, so that official files load as they are.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.kits.pictures.models.rope import turn


class Keys(Protocol):
    """Where a layer's keys and values are kept between passes (the core's slot cache)."""

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of this pass; all that are visible come back: `[batch, head, slot, width]` each."""
        ...


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, eps=self.eps).type_as(x) * self.weight


class Attention(nn.Module):
    """Grouped-query attention; queries, keys and values of one matrix."""

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
    """SwiGLU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each behind a norm and beside a residual."""

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
    """Who sees whom: `[rows, 1, length, length]` bool. Causal; padding of the caption is seen by itself only."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    seen = causal.expand(rows, 1, length, length)
    if mask is None:
        return seen
    columns = F.pad(mask.bool(), (0, length - given), value=True)
    itself = torch.eye(length, dtype=torch.bool, device=device)
    return seen & columns[:, None, None] | itself
