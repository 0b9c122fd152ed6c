"""Blocks that are not one layer of the target: several of its layers in a row, or one attention and one MLP of its own.

Names of parameters are the keys of checkpoints.
"""

from typing import Any

from torch import Tensor, nn

CHAINED = "full_attention"
"""What the first layer of a chain is. The others keep nothing of earlier units."""
KEEPING = (CHAINED, "linear_attention")
"""Kinds of layers that do."""


class Chain(nn.ModuleList):
    """Layers of different kinds, one behind the other (Nemotron-H: attention, then experts).

    Args:
        kind: The class of the target's layers.
        config: The configuration; its `layer_types` say what each layer is.

    Raises:
        ValueError: Another layer than the first one attends, or is recurrent.
    """

    def __init__(self, kind: Any, config: Any) -> None:
        kinds = config.layer_types
        if kinds[0] != CHAINED or any(each in KEEPING for each in kinds[1:]):
            raise ValueError(
                f"multi-token layers of the kinds {', '.join(kinds)} are not read: the first one attends, and the "
                "others neither attend nor are recurrent"
            )
        super().__init__(kind(config, number) for number in range(len(kinds)))

    def forward(self, x: Tensor, **arguments: Any) -> Tensor:
        """States `[batch, row, hidden]`."""
        for layer in self:
            x = layer(x, **arguments)
        return x


class Plain(nn.Module):
    """Attention and an MLP, each behind a norm, of a target whose layers have two of each (LongCat-Flash).

    Args:
        layer: One of the target's layers.
        config: The configuration.
        number: The number of the block, under which a cache keeps its keys.
    """

    def __init__(self, layer: nn.Module, config: Any, number: int) -> None:
        super().__init__()
        attention, mlp, norm = (
            type(layer.get_submodule(f"{part}.0")) for part in ("self_attn", "mlps", "input_layernorm")
        )
        self.input_layernorm: nn.Module = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn: nn.Module = attention(config, number)
        self.post_attention_layernorm: nn.Module = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp: nn.Module = mlp(config)

    def forward(self, x: Tensor, **arguments: Any) -> Tensor:
        """States `[batch, row, hidden]`."""
        attended, *_ = self.self_attn(hidden_states=self.input_layernorm(x), **arguments)
        x = x + attended
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
