"""Decoder layers over all known features."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tests.support.path_heads.layout import Shapes
from tests.support.settled_layers import Settled

HEADS, KEYS, WIDTH, INNER = 2, 1, 8, 20
CONFIG = {"num_attention_heads": HEADS, "rms_norm_eps": 1e-5, "rope_theta": 5000.0}


def block_shapes(prefix: str, hidden: int, width: int = WIDTH) -> Shapes:
    made: Shapes = {f"{prefix}input_layernorm.weight": (hidden,), f"{prefix}post_attention_layernorm.weight": (hidden,)}
    for part, heads in (("q", HEADS), ("k", KEYS), ("v", KEYS)):
        made[f"{prefix}self_attn.{part}_proj.weight"] = (heads * width, hidden)
    made[f"{prefix}self_attn.o_proj.weight"] = (hidden, HEADS * width)
    made |= {f"{prefix}mlp.{part}_proj.weight": (INNER, hidden) for part in ("gate", "up")}
    return {**made, f"{prefix}mlp.down_proj.weight": (hidden, INNER)}


def last_state(w: Mapping[str, Tensor], prefix: str, features: Tensor, config: Mapping[str, Any]) -> Tensor:
    """The state at the last feature, behind layers whose keys begin with a prefix and a number."""
    own = {key: value for key, value in config.items() if key != "num_hidden_layers"}
    settled, states = Settled(own, w, prefix), features.double()
    for number in range(settled.layers):
        xs, seen = settled.normed(f"{prefix}{number}.input_layernorm", states), settled.causal(number, len(states))
        states = settled.layer(number, states, xs, seen, [len(states)])
    return states[-1]
