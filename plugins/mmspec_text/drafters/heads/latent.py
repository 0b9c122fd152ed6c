"""Latent attention: keys and values of all heads are made of one short vector a row (DeepSeek-V2, arXiv 2405.04434).

Heads for targets of DeepSeek's and Kimi's have it, under the keys of these models. A query and a key have numbers that
do not turn with the position and numbers that do, and all heads have the same turning ones of a key. A published head
turns neighbouring numbers; its weights are reordered here for the turn of two halves, as in every other head. Scores
do not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

from mmspec.hosts.attention import packed_attention
from mmspec_text.drafters.heads.entries import agree, positive
from mmspec_text.drafters.heads.layers import BlockSizes, turned
from mmspec_text.drafters.heads.stored import Stored

DOWN, UP = "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj"


@dataclass(frozen=True)
class Latent:
    """The sizes of latent attention."""

    heads: int
    rank: int  # numbers of the vector of which keys and values are made
    still: int  # numbers of a head's query and key that do not turn
    turning: int  # numbers that do
    value: int  # numbers of a head's value
    queries: int | None  # numbers of the vector of which queries are made; None: they are made of the states
    pairs: bool  # stored numbers that turn together are neighbours

    @classmethod
    def of(cls, stored: Stored, prefix: str, given: Mapping[str, Any]) -> "Latent | None":
        """The facts that a layer's tensors show; None where it has attention of another kind."""
        if f"{prefix}{DOWN}.weight" not in stored.headers:
            return None
        heads, what = positive(given, "num_attention_heads", stored.what), stored.what
        down, _ = stored.matrix(f"{prefix}{DOWN}.weight")
        up, rank = stored.matrix(f"{prefix}{UP}.weight")
        _, values = stored.matrix(f"{prefix}self_attn.o_proj.weight")
        low = f"{prefix}self_attn.q_a_proj.weight" in stored.headers
        asked, queries = stored.matrix(f"{prefix}self_attn.{'q_b_proj' if low else 'q_proj'}.weight")
        turning, value = down - rank, values // heads
        still = up // heads - value
        sizes = (values, value * heads), (up, (still + value) * heads), (asked, (still + turning) * heads)
        if any(there != made for there, made in sizes) or min(still, turning, value) < 1 or turning % 2:
            raise ValueError(
                f"{what}: {asked}, {up} and {values} numbers of queries, of keys and values, and of what is read are "
                f"not {heads} equal heads of which {turning} numbers turn"
            )
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        agree(given, dict(zip(names, (rank, still, turning, value), strict=True)), what)
        if low:
            agree(given, {"q_lora_rank": queries}, what)
        pairs = given.get("rope_interleave") is not False
        return cls(heads, rank, still, turning, value, queries if low else None, pairs)

    def by_halves(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights with the turning numbers in halves: the first ones of all pairs, then the second ones."""
        ordered = dict(weights)
        for key, value in weights.items() if self.pairs else ():
            if f"{DOWN}." in key:
                ordered[key] = torch.cat([value[: self.rank], halved(value[self.rank :], 0)])
            elif "self_attn.q_b_proj." in key or "self_attn.q_proj." in key:
                each = value.unflatten(0, (self.heads, -1))
                ordered[key] = torch.cat([each[:, : self.still], halved(each[:, self.still :], 1)], 1).flatten(0, 1)
        return ordered


def halved(pairs: Tensor, dim: int) -> Tensor:
    """Numbers along a dimension: those at even places, then those at odd places."""
    return pairs.unflatten(dim, (-1, 2)).transpose(dim, dim + 1).flatten(dim, dim + 1)


class LatentAttention(nn.Module):
    """Latent attention over the slots of a cache, which hold whole keys and values; see `layers.Attention`."""

    def __init__(self, a: BlockSizes, latent: Latent, inside: int) -> None:
        super().__init__()
        self.sizes = s = latent
        width = s.still + s.turning
        self.scaling: float = yarn_apply_mscale(dict(a.rope), width**-0.5)
        if s.queries is None:
            self.q_proj = nn.Linear(inside, s.heads * width, bias="q_proj" in a.biases)
        else:
            self.q_a_proj = nn.Linear(inside, s.queries, bias="q_a_proj" in a.biases)
            self.q_a_layernorm = nn.RMSNorm(s.queries, a.eps)
            self.q_b_proj = nn.Linear(s.queries, s.heads * width, bias="q_b_proj" in a.biases)
        self.kv_a_proj_with_mqa = nn.Linear(inside, s.rank + s.turning, bias="kv_a_proj_with_mqa" in a.biases)
        self.kv_a_layernorm = nn.RMSNorm(s.rank, a.eps)
        self.kv_b_proj = nn.Linear(s.rank, s.heads * (s.still + s.value), bias="kv_b_proj" in a.biases)
        self.o_proj = nn.Linear(s.heads * s.value, a.hidden, bias="o_proj" in a.biases)

    def forward(self, x: Tensor, angles: Any, mask: Tensor | None, kept: Any) -> Tensor:
        s = self.sizes
        asked = self.q_proj(x) if s.queries is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        still, turning = self._split(asked).split([s.still, s.turning], -1)
        query = torch.cat([still, turned(turning, angles)], -1)
        short, turning = self.kv_a_proj_with_mqa(x).split([s.rank, s.turning], -1)
        still, value = self._split(self.kv_b_proj(self.kv_a_layernorm(short))).split([s.still, s.value], -1)
        key = torch.cat([still, turned(turning[:, None], angles).expand(-1, s.heads, -1, -1)], -1)
        keys, values = kept.update(key, value)
        out, _ = packed_attention(self, query, keys, values, mask, scaling=self.scaling)
        joined: Tensor = self.o_proj(out.flatten(2))
        return joined

    def _split(self, x: Tensor) -> Tensor:
        """`[batch, row, heads · width]` as `[batch, heads, row, width]`."""
        return x.unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2)
