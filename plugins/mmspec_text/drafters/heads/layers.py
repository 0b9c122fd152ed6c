"""Parts of the layers of heads: attention over the slots of a cache, gated MLPs, rotary positions.

Names of parameters are the keys of checkpoints.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from mmspec.hosts.attention import packed_attention
from mmspec.hosts.devices import awake


class Sizes(Protocol):
    """What an architecture says of its layers."""

    @property
    def hidden(self) -> int:
        """Numbers of a state."""
        ...

    @property
    def intermediate(self) -> int:
        """Numbers inside an MLP."""
        ...

    @property
    def heads(self) -> int:
        """Attention heads."""
        ...

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        ...

    @property
    def head_dim(self) -> int:
        """Numbers of an attention head."""
        ...

    @property
    def head_norms(self) -> bool:
        """Whether queries and keys are normalised head by head."""
        ...

    @property
    def biases(self) -> frozenset[str]:
        """Linear layers with a bias, by the ends of their names."""
        ...

    @property
    def eps(self) -> float:
        """Of the norms."""
        ...

    @property
    def activation(self) -> str:
        """Of the MLPs."""
        ...

    @property
    def rope(self) -> Mapping[str, Any]:
        """Rotary parameters as transformers names them."""
        ...


def rotary(sizes: Sizes) -> nn.Module:
    """Rotary positions of any length: `(states, positions [batch, row])` to cosines and sines, in float32."""
    heads = {"num_attention_heads": sizes.heads, "head_dim": sizes.head_dim}
    config = LlamaConfig(hidden_size=sizes.heads * sizes.head_dim, **heads, rope_parameters=dict(sizes.rope))
    with torch.device("cpu"):  # also where the network is built without memory
        return LlamaRotaryEmbedding(config)


def turned(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys `[batch, heads, row, width]` at the positions of `angles`, which `rotary` returned."""
    cosines, sines = (part[:, None] for part in angles)
    return x * cosines + rotate_half(x) * sines


def looked_up(units: Tensor, table: nn.Module, dtype: torch.dtype) -> Tensor:
    """Rows `[batch, row, width]` of a table for units `[batch, row]`, on their device; the table may be elsewhere.

    Heads of the EAGLE family read this of the target: the kits that train them copy its table into one of their own,
    without what its module does behind it.
    """
    with awake(table):
        weight: Any = table.weight
        return F.embedding(units.to(weight.device), weight).to(units.device, dtype)


def embedded(units: Tensor, embedding: nn.Module, dtype: torch.dtype) -> Tensor:
    """What the target's embedding returns for units; some modules scale, as Gemma's do by the root of the width.

    All other heads read this: their authors' code calls the module (Hydra, DFlash), or they are layers of the model. A
    norm inside the module (`embed_norm`) is left out, as in transformers' own loop for DFlash.
    """
    if "embed_norm" in embedding._modules:
        return looked_up(units, embedding, dtype)
    weight: Any = embedding.weight
    out: Tensor = embedding(units if weight.is_meta else units.to(weight.device))  # an offloaded one moves them itself
    return out.to(units.device, dtype)


class Attention(nn.Module):
    """Attention over the slots of a cache.

    Args:
        a: The sizes.
        inside: Numbers of what it reads.
        sinks: Whether every head has a logit that takes weight and has no value.
    """

    def __init__(self, a: Sizes, inside: int, sinks: bool = False) -> None:
        super().__init__()
        self.head_dim = a.head_dim
        self.q_proj = nn.Linear(inside, a.heads * a.head_dim, bias="q_proj" in a.biases)
        self.k_proj = nn.Linear(inside, a.key_heads * a.head_dim, bias="k_proj" in a.biases)
        self.v_proj = nn.Linear(inside, a.key_heads * a.head_dim, bias="v_proj" in a.biases)
        self.o_proj = nn.Linear(a.heads * a.head_dim, a.hidden, bias="o_proj" in a.biases)
        self.q_norm = nn.RMSNorm(a.head_dim, a.eps) if a.head_norms else None
        self.k_norm = nn.RMSNorm(a.head_dim, a.eps) if a.head_norms else None
        self.attention_sink_bias = nn.Parameter(torch.empty(a.heads)) if sinks else None

    def forward(self, x: Tensor, angles: Any, mask: Tensor, kept: Any) -> Tensor:
        query = self._split(self.q_proj(x))
        if self.q_norm is not None:
            query = self.q_norm(query)
        keys, values = self.keep(x, angles, kept)
        out, _ = packed_attention(self, turned(query, angles), keys, values, mask, s_aux=self.attention_sink_bias)
        joined: Tensor = self.o_proj(out.flatten(2))
        return joined

    def keep(self, x: Tensor, angles: Any, kept: Any) -> tuple[Tensor, Tensor]:
        """Put keys and values of rows into the slots that are open; the keys and values of all slots that are seen."""
        key, value = self._split(self.k_proj(x)), self._split(self.v_proj(x))
        if self.k_norm is not None:
            key = self.k_norm(key)
        found: tuple[Tensor, Tensor] = kept.update(turned(key, angles), value)
        return found

    def _split(self, x: Tensor) -> Tensor:
        """`[batch, row, heads · width]` as `[batch, heads, row, width]`."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, a: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(a.hidden, a.intermediate, bias="gate_proj" in a.biases)
        self.up_proj = nn.Linear(a.hidden, a.intermediate, bias="up_proj" in a.biases)
        self.down_proj = nn.Linear(a.intermediate, a.hidden, bias="down_proj" in a.biases)
        self.activation = ACT2FN[a.activation]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out
