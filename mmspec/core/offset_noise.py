"""A decoder inside a round of another one draws with the outer call's noise: its position 0 is the outer next one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from mmspec.core.noise import Noise, Round


@dataclass(frozen=True)
class OffsetSource:
    """A `Source` of an inner call: the outer call's, with positions counted from the units that are known there.

    Attributes:
        outer: The round in which the inner call runs.
    """

    outer: Round

    def begin(self, host_emitted: Sequence[int]) -> None:
        """Nothing is dropped: the outer call still needs noise of positions that the inner one has passed."""

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> Noise:
        both = [outer + inner for outer, inner in zip(self.outer.host_emitted, host_emitted, strict=True)]
        return self.outer.source.by_position(self.outer.emitted + emitted, both, deepest)

    def fresh(self, emitted: Tensor, first: int, count: int) -> Noise:
        return self.outer.source.fresh(self.outer.emitted + emitted, first, count)

    def sheltered(self) -> AbstractContextManager[None]:
        """The outer call's drafter is sheltered as a whole."""
        return nullcontext()

    def finish(self, steps: int) -> None:
        """The outer call leaves the generator where it belongs."""
