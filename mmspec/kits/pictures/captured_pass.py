"""Captured passes of targets with guidance: a captured pass over physical rows, and the halves around it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from mmspec.core.capabilities import CapturedPass, SecondChoice
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.kits.pictures.halves import Halves
from mmspec.kits.pictures.raster import Raster


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


class CapturedRaster:
    """The pass of a raster transformer over physical rows.

    Args:
        raster: Runs the transformer.
        slots: An empty cache that becomes this pass's own.
    """

    def __init__(self, raster: Raster, slots: BufferCache) -> None:
        self.raster, self.slots = raster, slots

    def lone(self) -> "CapturedRaster":
        return self

    def load(self, cache: Any) -> None:
        self.slots.load(cache.slots)
        cache.slots = self.slots

    @contextmanager
    def ready(self) -> Iterator[None]:
        self.slots.hold_still()
        yield

    def verify(self, draft: Draft) -> TargetOutput:
        slots, raster = self.slots, self.raster
        slots.scratch = not draft.index.is_chain
        slots.open_static(draft.nodes)
        passed = raster.passed(raster.hidden(slots, raster.model.embed(draft.units), draft.index, 0))
        return TargetOutput(logits=passed.scores, hidden=passed.states)

    def commit(self, path: Tensor, count: Tensor) -> None:
        self.slots.commit_static(path, count)
