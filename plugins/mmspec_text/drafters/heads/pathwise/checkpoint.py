"""A head that steps along paths, as it is stored; reading one is its own folder's business."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.heads.stored import fitted


@dataclass(frozen=True)
class PathSizes:
    """What all of these heads have.

    Attributes:
        units: Units of the longest path.
        target_hidden: Numbers of the target's states.
        hidden: Numbers of the embeddings that it reads.
        vocab: Ids that it reads.
        draft_vocab: Ids that it scores.
        own_embedding: Whether it needs no embedding of the target.
    """

    units: int
    target_hidden: int
    hidden: int
    vocab: int
    draft_vocab: int
    own_embedding: bool


@dataclass(frozen=True)
class PathCheckpoint:
    """A head.

    Attributes:
        name: Where it is from, for messages.
        layout: The name of its layout.
        architecture: Its sizes.
        make: Makes the network for sizes and a number of the target's ids.
        weights: Its tensors, by the names of the network.
        ignored: Its keys that are not used.
        shared: The parts that are the target's.
    """

    name: str
    layout: str
    architecture: PathSizes
    make: Callable[[Any, int], Any]
    weights: Mapping[str, Tensor]
    ignored: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def network(self, vocab: int) -> Any:
        """The head, a `PathHead`, for a target of so many ids.

        Raises:
            ValueError: Tensors are missing, or have other shapes.
        """
        with torch.device("meta"):
            network = self.make(self.architecture, vocab)
        return fitted(network, self.weights, f"the head {self.name!r}", self.layout)

    @property
    def taken(self) -> tuple[str, ...]:
        """Its keys that are used."""
        return tuple(sorted(self.weights))


def random_weights(
    make: Callable[[Any, int], Any], sizes: PathSizes, seed: int, gain: float = 2.0
) -> dict[str, Tensor]:
    """Weights in float32, by the names of the network; what is a constant at first is random, too."""
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in make(sizes, sizes.vocab).state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for key, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator, device="cpu")
        weights[key] = drawn * gain / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * drawn
    return weights
