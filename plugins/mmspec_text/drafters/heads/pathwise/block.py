"""A decoder layer over all known features, which some heads read before a path begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.layers import Attention, Mlp, rotary
from mmspec_text.drafters.heads.stored import Stored
from mmspec_text.drafters.heads.values import activation, number, refuse_layers, rope, split_heads

THETA = 10000.0
"""The base of rotary positions where a config names none."""


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of such a layer; it is a `Sizes`."""

    hidden: int  # numbers of a state
    intermediate: int  # numbers inside its MLP
    heads: int  # attention heads
    key_heads: int  # heads of keys and values
    head_dim: int  # numbers of an attention head
    eps: float = 1e-6  # of the norms
    # Rotary parameters as transformers names them
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": THETA})
    head_norms: bool = False  # none of these layers has them
    biases: frozenset[str] = frozenset()  # none of these layers has them
    activation: str = "silu"  # of the MLP

    @classmethod
    def of(cls, stored: Stored, prefix: str) -> "BlockSizes":
        """The sizes of a stored layer.

        Args:
            stored: The head. Its config has `num_attention_heads`, and what of `rms_norm_eps`, `hidden_act` and the
                rotary parameters is not the default.
            prefix: The beginning of the layer's keys.

        Raises:
            ValueError: Tensors or entries are missing, or they contradict each other.
        """
        config, what = stored.config, stored.what
        refuse_layers(config, what)
        queries, hidden = stored.matrix(f"{prefix}self_attn.q_proj.weight")
        found, intermediate = (
            stored.matrix(f"{prefix}{part}.weight")[0] for part in ("self_attn.k_proj", "mlp.gate_proj")
        )
        heads, head_dim = split_heads(config, queries, found, what)
        eps, angles = number(config, "rms_norm_eps", 1e-6, what), rope(config, THETA, what)
        sizes = (hidden, intermediate, heads, found // head_dim, head_dim, eps, angles)
        return cls(*sizes, activation=activation(config, what))


class Block(nn.Module):
    """A decoder layer with norms before attention and MLP."""

    def __init__(self, a: BlockSizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(a.hidden, a.eps)
        self.self_attn = Attention(a, a.hidden)
        self.post_attention_layernorm = nn.RMSNorm(a.hidden, a.eps)
        self.mlp = Mlp(a)
        self._rotary = (rotary(a),)  # in a tuple: in float32, whatever the dtype of the layer

    def forward(self, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        """States `[batch, row, hidden]` of states; the cache has one layer, opened for these rows."""
        turn = self._rotary[0].to(states.device)
        (kept,) = slots.layers
        angles = turn(states, geometry.query)
        states = states + self.self_attn(self.input_layernorm(states), angles, geometry.tree, kept)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


def dtype_of(network: nn.Module) -> torch.dtype:
    """The dtype of a network's weights."""
    return next(network.parameters()).dtype
