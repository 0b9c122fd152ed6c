"""Captured passes of targets with guidance: a captured pass over physical rows, and the halves around it."""

from contextlib import AbstractContextManager
from dataclasses import replace

from torch import Tensor

from mmspec.core.capturable import CapturedPass, SecondChoice
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.halves import Halves


class CapturedHalves:
    """A captured pass of logical rows: each is one physical row, or two under guidance.

    Args:
        inner: The pass over physical rows.
        halves: The cache of a call, with the inner pass's own slots.
    """

    def __init__(self, inner: CapturedPass, halves: Halves) -> None:
        self.inner, self.halves = inner, halves

    def lone(self) -> "CapturedHalves":
        return CapturedHalves(self.inner.lone(), self.halves)

    def load(self, cache: Halves) -> None:
        self.inner.load(cache)

    def fall_back(self) -> str:
        return self.inner.fall_back() if isinstance(self.inner, SecondChoice) else ""

    def ready(self) -> AbstractContextManager[None]:
        return self.inner.ready()

    def verify(self, draft: Draft) -> TargetOutput:
        halves = self.halves
        physical = replace(
            draft,
            units=halves.physical(draft.units),
            valid=halves.physical(draft.valid),
            index=halves.index(draft.index),
        )
        output = self.inner.verify(physical)
        assert output.logits is not None
        return halves.output(output.logits, output.hidden)

    def commit(self, path: Tensor, count: Tensor) -> None:
        self.inner.commit(self.halves.physical(path), self.halves.physical(count))
