"""A head whose drafts depend on the root's feature and on the drafted path alone: what it computes, how it is stored.

The feature is the target's state behind its final norm at the unit before the root; some heads read all features before
it through attention first. A node's state is computed from its parent's, so that no drafted row is ever in a cache.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.types import Draft, TargetOutput
from mmspec_text.drafters.heads.head import Borrowing, Head
from mmspec_text.drafters.heads.stored import Stored, fitted


@runtime_checkable
class PathHead(Borrowing, Protocol):
    """A head that steps along paths."""

    units: int  # units of the longest path that it drafts
    vocab: int  # number of unit ids of its logits

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        """States `[batch, row, size]` behind roots, of the features `[batch, row, width]` of the units before them."""

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        """States `[batch, node, size]` behind drafted units `[batch, node]`, of their parents' `[batch, node, size]`. A
        child of the root has depth 1; the size may depend on the depth.
        """

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        """Logits `[batch, node, vocab]` of the next unit, -inf where the head has no id, of states at `depth`."""


@runtime_checkable
class PrefixHead(Head, Protocol):
    """A head that reads all known features through attention: it is a `Head`, too, for the rows of known units.

    Its `passed` returns what `rooted` returns, for the attention's output in place of the features.
    """


class Walk:
    """The `feed` of `mmspec.core.drafters.growing` for a head that steps along paths.

    All nodes of a level are fed at once, and their parents are nodes of the level before: its states are all that is
    kept. `states` is the root's, `[batch, 1, size]`.
    """

    def __init__(self, head: PathHead, states: Tensor) -> None:
        self.head, self.states = head, states
        self.first = self.depth = 0  # of the nodes that `states` are of

    def output(self) -> TargetOutput:
        """The output at the nodes that were fed last."""
        return TargetOutput(logits=self.head.logits(self.states, self.depth))

    def grow(self, draft: Draft, first: int) -> TargetOutput:
        """The output at the nodes of a rooted draft from `first` on, which are one level."""
        parents = take_nodes(self.states, draft.index.parent[:, first:] - self.first)
        self.depth += 1
        self.states, self.first = self.head.followed(parents, draft.units[:, first:], self.depth), first
        return self.output()


@dataclass(frozen=True)
class PathSizes:
    """The members of all of these heads."""

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
    stored: Stored | None = field(default=None, kw_only=True)  # its files

    def network(self, vocab: int) -> Any:
        """The head, a `PathHead`, for a target of so many ids."""
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
