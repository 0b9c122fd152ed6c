"""The outer call's noise for a decoder that runs inside one of its rounds, with positions shifted accordingly."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from mmspec.core.noise import Noise, Round


@dataclass(frozen=True)
class OffsetSource:
    """The `Source` of an inner call: position 0 is the outer call's next unit."""

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
