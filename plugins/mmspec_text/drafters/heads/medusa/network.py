"""The network of Medusa's heads.

    head i: x = h; for every block: x = x + SiLU(W x + b); logits of the unit i + 1 behind the root = E_i x

`h` is the feature, the same for all heads; drafted units are not read.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec_text.drafters.heads.eagle.vocabulary import over_target
from mmspec_text.drafters.heads.pathwise.checkpoint import PathSizes


@dataclass(frozen=True)
class MedusaSizes(PathSizes):
    """The shape of Medusa's heads."""

    layers: int = 1  # residual blocks of a head
    bias: bool = True  # whether blocks have a bias
    one_output: bool = False  # whether all heads have one output layer
    own_output: bool = True  # whether output layers are stored; otherwise all heads use the target's
    pruned: bool = False  # whether they score a part of the ids, which `token_map` lists
    scale: float = 1.0  # factor of the logits


class MedusaNetwork(nn.Module):
    """See the module. It is a `PathHead`; a node's state is the feature."""

    token_map: Tensor | None

    def __init__(self, a: MedusaSizes, vocab: int) -> None:
        super().__init__()
        self.units, self.vocab, self.scale = a.units, vocab, a.scale
        width = a.target_hidden
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width, bias=a.bias) for _ in range(a.layers)) for _ in range(a.units)
        )
        outputs = 0 if not a.own_output else 1 if a.one_output else a.units
        self.lm_heads = nn.ModuleList(nn.Linear(width, a.draft_vocab, bias=False) for _ in range(outputs))
        self.register_buffer("token_map", torch.empty(a.draft_vocab, dtype=torch.int64) if a.pruned else None)
        self._shared: tuple[nn.Module, ...] = ()  # in a tuple, so that torch does not adopt it

    def join(self, embedding: nn.Module, output: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.to(device, dtype)
        self._shared = (output,)

    @property
    def borrowed(self) -> tuple[nn.Module, ...]:
        """The target's modules that the heads call."""
        return self._shared

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        return features.to(self.blocks[0][0].weight.dtype)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        return states

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        x = states[:, :1]  # the same at all nodes of a row
        for layer in self.blocks[depth]:
            x = x + F.silu(layer(x))
        outputs = self.lm_heads or self._shared
        scored = outputs[min(depth, len(outputs) - 1)](x) * self.scale
        return over_target(scored, self.token_map, self.vocab).expand(-1, states.shape[1], -1)
