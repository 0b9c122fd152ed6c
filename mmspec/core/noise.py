"""Random numbers with an address: a number depends on where it is used, not on when it is drawn.

There are two kinds of address, and rules are exact only with the right one (noise by position under a rule that looks
past its stopping point is a published bug):

* by **position**: the index of the drawn unit in the output. The rule `match` uses it: the same seed gives the same
  units, whatever was drafted.
* **fresh**: the round (number of committed units) and the node. All other rules use it, with disjoint substreams for
  drafts, coins and residuals.

Two sources: `philox` (counter-based, the default of `Decoder`) and `torch_noise` (the numbers of stock sampling).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex, picked


class Substream(IntEnum):
    """Independent random streams at one address, by purpose."""

    UNIT = 0
    DRAFT = 1
    COIN = 2
    RESIDUAL = 3
    KEY = 4
    SECOND_COIN = 5
    SECOND = 6


class ContinuousNoise(Protocol):
    """The part of a `Noise` that distributions of continuous units may read; results are float32."""

    def substream(self, substream: Substream) -> "ContinuousNoise":
        """The same addresses in another substream."""

    def uniform(self) -> Tensor:
        """Uniform in (0, 1): `[batch, node]`."""

    def normal(self, *unit: int) -> Tensor:
        """Standard normal: `[batch, node, *unit]`."""


class Noise(ContinuousNoise, Protocol):
    """Noise for one round's nodes; results are `[batch, node, …]`, float32."""

    def substream(self, substream: Substream) -> "Noise":
        """The same addresses in another substream."""

    def where(self, mask: Tensor, substream: Substream) -> "Noise":
        """The same addresses, in another substream at the nodes of `mask [batch, node]`."""

    def at(self, index: Tensor) -> "Noise":
        """The noise at the nodes `index [batch, m]` (or `[1, m]`): `[batch, m]` addresses."""

    def exponential(self, size: int) -> Tensor:
        """Exp(1) for the unit ids `0 … size - 1`: `[batch, node, size]`."""

    def exponential_at(self, ids: Tensor) -> Tensor:
        """Exp(1) for the unit ids `[batch, node, k]`; the same numbers that `exponential` has for them."""


@dataclass(frozen=True)
class SpreadNoise:
    """Noise for nodes that share addresses: computed once per address, then gathered by `index [batch, node]`."""

    noise: Noise
    index: Tensor

    def substream(self, substream: Substream) -> "SpreadNoise":
        return replace(self, noise=self.noise.substream(substream))

    def where(self, mask: Tensor, substream: Substream) -> Noise:
        each = self.noise.at(self.index)  # nodes of one address may want different substreams
        return self.substream(substream) if isinstance(each, SpreadNoise) else each.where(mask, substream)

    def at(self, index: Tensor) -> "SpreadNoise":
        return replace(self, index=picked(self.index, index))

    def exponential(self, size: int) -> Tensor:
        return self._spread(self.noise.exponential(size))

    def exponential_at(self, ids: Tensor) -> Tensor:
        return self.noise.at(self.index).exponential_at(ids)

    def uniform(self) -> Tensor:
        return self._spread(self.noise.uniform())

    def normal(self, *unit: int) -> Tensor:
        return self._spread(self.noise.normal(*unit))

    def _spread(self, values: Tensor) -> Tensor:
        index = self.index.expand(len(values), -1)
        index = index.reshape(*index.shape, *(1,) * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
        return values.gather(1, index)


class Source(Protocol):
    """The noise of one call."""

    def begin(self, host_emitted: Sequence[int]) -> None:
        """Begin a round: noise of positions before `host_emitted` will not be needed again."""

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> Noise:
        """Noise of the positions `emitted + 0 … deepest`: addresses `[batch, deepest + 1]`.

        Args:
            emitted: `[batch]` int64, units emitted so far.
            host_emitted: `emitted`, on the host.
            deepest: Depth of the deepest node.
        """

    def fresh(self, emitted: Tensor, first: int, count: int) -> Noise:
        """Noise of the nodes `first … first + count - 1`, new in every round: addresses `[batch, count]`."""

    def sheltered(self) -> AbstractContextManager[None]:
        """A block after which torch's generator is where it was: what drafters draw from it has no effect."""

    def finish(self, steps: int) -> None:
        """End the call: leave torch's generator where `steps` steps of plain decoding would have left it."""


@runtime_checkable
class Counting(Protocol):
    """A source whose fresh numbers are functions of tensors alone, so that a captured round computes them itself."""

    @property
    def fresh_key(self) -> Tensor:
        """`[batch, 2]` int64; a `PhiloxSource` with this key has the same `fresh`."""


@runtime_checkable
class Unread(Protocol):
    """A source whose noise by position is picked on the device, so that the host need not know the positions."""

    def by_tensors(self, emitted: Tensor, deepest: int, ahead: int) -> Noise:
        """`Source.by_position`; `begin` was told an earlier `emitted`, by at most `ahead` units a row."""


@dataclass(frozen=True)
class Round:
    """The noise of one round, as rules use it.

    Attributes:
        source: The call's noise.
        emitted: `[batch]` int64, units emitted before this round.
        host_emitted: `emitted`, on the host.
    """

    source: Source
    emitted: Tensor
    host_emitted: Sequence[int]

    def by_position(self, tree: TreeIndex) -> Noise:
        """Noise for a draw at every node, `[batch, node]`: nodes of the same depth share it."""
        noise = self.source.by_position(self.emitted, self.host_emitted, tree.deepest)
        return noise if tree.is_chain else SpreadNoise(noise, tree.depth)

    def fresh(self, count: int) -> Noise:
        """Noise for a draw at every node, `[batch, count]`, independent of every other round's."""
        return self.source.fresh(self.emitted, 0, count)


@dataclass(frozen=True)
class DraftNoise:
    """The noise that sampled drafts must use under the call's rule.

    Attributes:
        round: The round's noise.
        shared: Whether drafts are drawn with the target's own noise of the same positions (as `match` wants), or with
            fresh noise.
    """

    round: Round
    shared: bool

    def chain(self, first: int, count: int) -> Noise:
        """Noise for nodes `first … first + count - 1` of a chain (1 is the root's child): `[batch, count]`."""
        if self.shared:
            emitted = self.round.emitted + (first - 1)
            host_emitted = [e + first - 1 for e in self.round.host_emitted]
            return self.round.source.by_position(emitted, host_emitted, count - 1)
        return self.fresh(first, count)

    def level(self, depth: int, first: int, count: int) -> Noise:
        """Noise for nodes `first … first + count - 1`, all at one `depth` of a tree: `[batch, count]`."""
        if self.shared:
            together = torch.zeros(1, count, dtype=torch.int64, device=self.round.emitted.device)
            return SpreadNoise(self.chain(depth, 1), together)
        return self.fresh(first, count)

    def fresh(self, first: int, count: int) -> Noise:
        """Noise for nodes `first … first + count - 1` that nothing else has, whatever the rule: `[batch, count]`."""
        return self.round.source.fresh(self.round.emitted, first, count).substream(Substream.DRAFT)


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that `torch.manual_seed` seeds for `device`."""
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator


@contextmanager
def unmoved(device: torch.device) -> Iterator[None]:
    """A block after which torch's generator for `device` is where it was."""
    generator = default_generator(device)
    before = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(before)


class RaceNoise:
    """The refusals of such noise; its kinds have `exponential` and `at`."""

    name: ClassVar[str]  # the noise, for errors
    advice: ClassVar[str]  # what would do, for errors

    def substream(self, substream: Substream) -> Self:
        if substream is not Substream.UNIT:
            raise ValueError(f"{self.name} has one stream, which only the rule 'match' can use; {self.advice}")
        return self

    def where(self, mask: Tensor, substream: Substream) -> Self:
        return self.substream(substream)

    def exponential_at(self, ids: Tensor) -> Tensor:
        raise ValueError(f"{self.name} needs dense distributions; {self.advice}")

    def uniform(self) -> Tensor:
        raise ValueError(f"{self.name} has exponentials only; {self.advice}")

    def normal(self, *unit: int) -> Tensor:
        raise ValueError(f"{self.name} has exponentials only; {self.advice}")


@dataclass(frozen=True)
class OffsetSource:
    """The outer call's noise for a call inside one of its rounds: position 0 is the outer call's next unit."""

    outer: Round  # the outer round in which the inner call runs

    def begin(self, host_emitted: Sequence[int]) -> None:
        """Does nothing: the outer call still needs noise of positions that the inner one has passed."""

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> Noise:
        host = [outer + inner for outer, inner in zip(self.outer.host_emitted, host_emitted, strict=True)]
        return self.outer.source.by_position(self.outer.emitted + emitted, host, deepest)

    def fresh(self, emitted: Tensor, first: int, count: int) -> Noise:
        return self.outer.source.fresh(self.outer.emitted + emitted, first, count)

    def sheltered(self) -> AbstractContextManager[None]:
        """Does nothing: the outer call's drafter, and so the inner call, is sheltered as a whole."""
        return nullcontext()

    def finish(self, steps: int) -> None:
        """Does nothing: the outer call sets the generator."""
