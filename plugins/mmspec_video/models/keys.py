"""Keys of earlier frames: what a causal video transformer need not compute again.

By causality, keys and values of a finished frame do not depend on later ones, nor on how noisy these are: they stay
what they are over all denoising steps of the next frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import take_nodes

Pair = tuple[Tensor, Tensor]
"""Keys and values of some frames in one layer: `[row, frame, cell, head, width]` each."""


@dataclass
class LayerKeys:
    """One layer's part in a pass.

    Attributes:
        before: Those of earlier frames; None: there are none.
        made: Those of the pass's own frames, once it has gone by.
    """

    before: Pair | None = None
    made: Pair | None = None

    def update(self, keys: Tensor, values: Tensor) -> Pair:
        """Remember those of the pass; all that there are come back, the earlier ones first."""
        self.made = keys, values
        if self.before is None:
            return keys, values
        return torch.cat([self.before[0], keys], 1), torch.cat([self.before[1], values], 1)


@dataclass
class FrameKeys:
    """All layers of a model, for one pass after another.

    Attributes:
        layers: One each; filled in by the first pass.
    """

    layers: list[LayerKeys] = field(default_factory=list)

    @classmethod
    def none(cls, layers: int) -> "FrameKeys":
        """Nothing is known yet."""
        return cls([LayerKeys() for _ in range(layers)])

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "FrameKeys":
        """Earlier frames, layer by layer."""
        return cls([LayerKeys(pair) for pair in pairs])

    def made(self) -> list[Pair]:
        """What the last pass's own frames have, layer by layer."""
        made = [layer.made for layer in self.layers]
        return [pair for pair in made if pair is not None]


def taken(pairs: Sequence[Pair], frames: Tensor) -> list[Pair]:
    """The frames `[row, n]` of keys and values."""
    return [(take_nodes(keys, frames), take_nodes(values, frames)) for keys, values in pairs]


def joined(first: Sequence[Pair], then: Sequence[Pair]) -> list[Pair]:
    """Frames behind frames."""
    both = zip(first, then, strict=True)
    return [(torch.cat([a[0], b[0]], 1), torch.cat([a[1], b[1]], 1)) for a, b in both]


def causal(frames: int, device: torch.device | str = "cpu") -> Tensor:
    """Which frame sees which, where all of them are of one pass: `[1, frame, frame]` bool."""
    return torch.ones(1, frames, frames, dtype=torch.bool, device=device).tril()
