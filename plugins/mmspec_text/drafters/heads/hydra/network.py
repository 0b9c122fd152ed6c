"""The network of Hydra's heads.

    head i: z = cat(f, E(root), E(unit 1), …, E(unit i)); x = R z + r + SiLU(W z + b); for every further block:
    x = x + SiLU(W x + b); logits of the unit i + 1 behind the root = O_i x

`f` is the feature; of Hydra++ it is what a decoder layer and a norm make of all features so far.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.eagle.vocabulary import over_target
from mmspec_text.drafters.heads.layers import embedded
from mmspec_text.drafters.heads.pathwise.block import Block, BlockSizes, dtype_of
from mmspec_text.drafters.heads.pathwise.checkpoint import PathSizes


@dataclass(frozen=True)
class HydraSizes(PathSizes):
    """The shape of Hydra's heads."""

    # Numbers of a head's blocks in its checkpoint, where others are of layers without weights
    places: tuple[int, ...] = (0,)
    bias: bool = True  # whether output layers have a bias
    prefix: BlockSizes | None = None  # the decoder layer of Hydra++; None: Hydra


class HydraNetwork(nn.Module):
    """See the module. It is a `PathHead`; a node's state is the feature and the embeddings of the path."""

    def __init__(self, a: HydraSizes, vocab: int) -> None:
        super().__init__()
        self.units, self.vocab = a.units, vocab
        width = a.target_hidden
        self.hydra_mlp = nn.ModuleList(
            nn.ModuleDict({str(place): Residual(width, head + 1 if place == a.places[0] else 0) for place in a.places})
            for head in range(a.units)
        )
        self.hydra_lm_head = nn.ModuleList(nn.Linear(width, a.draft_vocab, bias=a.bias) for _ in range(a.units))
        self._embedding: tuple[nn.Module, ...] = ()  # in a tuple, so that torch does not adopt it

    def join(self, embedding: nn.Module, output: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.to(device, dtype)
        self._embedding = (embedding,)

    @property
    def borrowed(self) -> tuple[nn.Module, ...]:
        """The target's modules that the heads call."""
        return self._embedding

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        return self.followed(features.to(dtype_of(self)), units, 0)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        return torch.cat([states, embedded(units, self._embedding[0], states.dtype)], -1)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        for block in self.hydra_mlp[depth].values():
            states = block(states)
        return over_target(self.hydra_lm_head[depth](states), None, self.vocab)


class PrefixHydraNetwork(HydraNetwork):
    """Hydra++: a `PrefixHead`, too."""

    depth = 1

    def __init__(self, a: HydraSizes, vocab: int) -> None:
        super().__init__(a, vocab)
        assert a.prefix is not None
        self.prefix = Block(a.prefix)
        self.prefix_norm = nn.RMSNorm(a.target_hidden, a.prefix.eps)

    def taken_in(self, features: Tensor) -> Tensor:
        return features.to(dtype_of(self))

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        return self.rooted(self.prefix_norm(self.prefix(states, slots, geometry)), units)


class Residual(nn.Module):
    """A residual block; the first one of a head makes one state of several.

    Args:
        width: Numbers of a state.
        more: States that it reads beside the first one.
    """

    def __init__(self, width: int, more: int) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + more) * width, width)
        self.res_connection = nn.Linear((1 + more) * width, width) if more else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x if self.res_connection is None else self.res_connection(x)
        return out + F.silu(self.linear(x))


def hydra_network(sizes: HydraSizes, vocab: int) -> HydraNetwork:
    """The network of either form."""
    return HydraNetwork(sizes, vocab) if sizes.prefix is None else PrefixHydraNetwork(sizes, vocab)
