"""A head with one output layer, perhaps over a part of the target's ids, as it is stored: what its kinds share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from mmspec_text.drafters.heads.eagle.family import Layout
from mmspec_text.drafters.heads.fits import Widths
from mmspec_text.drafters.heads.stored import fitted
from mmspec_text.drafters.heads.vocabulary import mapped_ids


class Scoring(Widths, Protocol):
    """What an architecture says of its output layer, too."""

    @property
    def own_output(self) -> bool:
        """Whether it has an output layer of its own."""
        ...


Shape = TypeVar("Shape", bound=Scoring)
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class HeadCheckpoint(Generic[Shape]):
    """A head as it is stored."""

    name: str  # where it is from, for messages
    layout: Layout
    architecture: Shape
    layer_ids: tuple[int, ...]  # the layer ids that its config names, as the layout means them; () where it names none
    weights: Mapping[str, Tensor]  # its tensors, by the names of the network
    ignored: tuple[str, ...]  # its keys that are not used

    def filled(self, make: Callable[[Shape, int], Network], vocab: int) -> Network:
        """The head for a target of so many ids.

        Args:
            make: Makes the network of a shape for a target of so many ids; its buffer `ids` is set here.
            vocab: The target's ids.

        Raises:
            ValueError: Tensors are missing or have other shapes, or the vocabularies do not fit.
        """
        a, what, d2t = self.architecture, f"the head {self.name!r}", self.weights.get("d2t")
        if not a.own_output and a.draft_vocab not in (vocab, a.vocab):
            raise ValueError(f"{what} scores {a.draft_vocab} ids, and has no lm_head.weight for them")
        if not a.own_output and d2t is not None and bool(d2t.any()):
            raise ValueError(f"{what} has a map of ids (d2t), and no lm_head.weight for them")
        drafted = min(a.draft_vocab, vocab) if d2t is None else a.draft_vocab
        ids = mapped_ids(d2t, self.weights.get("t2d"), drafted, vocab, what)
        with torch.device("meta"):
            network = make(a, vocab)
        network = fitted(network, self.weights, what, self.layout.name)
        network.register_buffer("ids", ids, persistent=False)
        return network

    @property
    def taken(self) -> tuple[str, ...]:
        """Its keys that are used."""
        return tuple(sorted(self.weights))

    @property
    def shared(self) -> tuple[str, ...]:
        """The parts that are the target's."""
        a = self.architecture
        parts = (("embed_tokens.weight", a.own_embedding), ("lm_head.weight", a.own_output))
        return tuple(key for key, own in parts if not own)
