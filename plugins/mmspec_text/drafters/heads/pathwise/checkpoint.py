"""A head that steps along paths, as it is stored; reading one is its own folder's business."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec_text.drafters.heads.stored import fitted


@dataclass(frozen=True)
class PathSizes:
    """What all of these heads have."""

    units: int  # units of the longest path
    target_hidden: int  # numbers of the target's states
    hidden: int  # numbers of the embeddings that it reads
    vocab: int  # ids that it reads
    draft_vocab: int  # ids that it scores
    own_embedding: bool  # whether it needs no embedding of the target
    context: ClassVar[int | None] = None  # most of these have no positions


@dataclass(frozen=True)
class PathCheckpoint:
    """A head."""

    name: str  # where it is from, for messages
    layout: str  # the name of its layout
    architecture: PathSizes
    make: Callable[[Any, int], Any]  # makes the network for sizes and a number of the target's ids
    weights: Mapping[str, Tensor]  # its tensors, by the names of the network
    ignored: tuple[str, ...] = ()  # its keys that are not used
    shared: tuple[str, ...] = ()  # the parts that are the target's
    layer_ids: ClassVar[tuple[int, ...]] = ()  # all of these read the state behind the final norm

    def network(self, vocab: int) -> Any:
        """The head, a `PathHead`, for a target of so many ids.

        Raises:
            ValueError: Tensors are missing, or have other shapes.
        """
        with torch.device("meta"):
            network = self.make(self.architecture, vocab)
        return fitted(network, self.weights, f"the head {self.name!r}", self.layout)

    @property
    def length(self) -> int:
        """Units for which it was trained."""
        return self.architecture.units

    @property
    def taken(self) -> tuple[str, ...]:
        """Its keys that are used."""
        return tuple(sorted(self.weights))
