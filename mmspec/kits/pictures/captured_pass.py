"""The captured pass of a raster transformer over physical rows; `mmspec.hosts.captured_halves` makes logical ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.kits.pictures.raster import Raster


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
