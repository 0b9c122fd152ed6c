"""Drafts of heads inside of captured rounds, over the code that drafts eagerly.

A head's memory of a call is in buffers: its cache, and the features of what the round before emitted. A round reads
these, grows the draft, and leaves the features of what it emits.
A decoder may be put together for every call, and reads its head anew; capturing takes longer than most calls. So heads
that are loaded again for the same target use the captured rounds that are there already.
"""

from abc import abstractmethod
from collections.abc import Hashable
from itertools import chain
from typing import Any

import torch

from mmspec.core.compile.protocols import InsideDrafts
from mmspec.core.drafters.growing import LiveRows, grown
from mmspec.core.drafters.shapes import Shape
from mmspec.core.live import Live, bucket
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput
from mmspec.hosts.buffer_cache import BufferCache
from mmspec_text.drafters.heads.cache import Feed, empty_layers
from mmspec_text.drafters.heads.head import Borrowing
from mmspec_text.drafters.heads.memory import HeadMemory, emitted_rows
from mmspec_text.drafters.heads.rows import Rows


class HeadInside(InsideDrafts):
    """The drafts of a head inside of captured rounds; calls of one round share what `beside` names, too."""

    def __init__(self, head: Borrowing, shape: Shape, k: int, state: State, beside: Hashable = ()) -> None:
        self.head = twin_of(head)
        self.shape, self.k, self.levels, self.warp = shape, k, shape.levels(k), state.warp
        self.parents = shape.parents(k)
        self.modules = self.head, *self.head.borrowed
        self.key = self.head, shape, beside

    @abstractmethod
    def begun(self, live: Live) -> tuple[TargetOutput, Feed]:
        """The output at the root, one node, and what runs the head over further ones."""

    def ended(self) -> None:
        """Put what the draft changed into the buffers; by default it changed nothing."""
        return

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        output, feed = self.begun(live)
        draft, _, _ = grown(self.shape, LiveRows(live, self.warp), self.k, self.levels, noise, output, feed=feed)
        self.ended()
        return draft


class RowsInside(HeadInside):
    """Of heads that read the rows of every round into a cache: the call's memory is a `HeadMemory`."""

    def __init__(self, head: Borrowing, shape: Shape, k: int, state: State, beside: Hashable = None) -> None:
        memory: HeadMemory = state.memory
        cache, self.columns = memory.cache, memory.columns
        own = self.columns.start, self.columns.stop, cache.halves, bucket(cache.most), beside
        super().__init__(head, shape, k, state, own)
        self.cache: Any = None  # of the call that was loaded last, which goes on with it

    def reserve(self, state: State) -> None:
        cache, unread = state.memory.cache, state.memory.unread
        assert unread is not None, "a round was observed since the last draft"
        features, columns = unread.features, max(self.levels, self.longest) + 1
        with torch.inference_mode(False), torch.no_grad():
            slots = BufferCache(empty_layers(self.head.depth), cache.slots, bucket(cache.most)).load(cache.slots)
            count = torch.zeros_like(state.emitted)
            # the features that are not read yet
            self.rows = Rows(features.new_zeros(len(features), columns, features.shape[2]), count)
            self.cache = cache.like(self.head, slots, self.levels)
            self._open, self._states = self.cache.open, self.cache.states
            self.begun(state.live)  # which reads no row: now the layers of the cache have their buffers
            self.ended()

    def load(self, drafter: Any, state: State) -> None:
        """The rows of a prompt, and of many rounds without a draft, are read here, as far as they are too many."""
        memory: HeadMemory = state.memory
        self._note(memory.rest(state, self.rows.features.shape[1]))
        self.cache.slots.load(memory.cache.slots)
        self._open.copy_(memory.cache.open)
        memory.cache, memory.unread = self.cache, None

    def unload(self, drafter: Any, state: State) -> None:
        state.memory.unread = Rows(self.rows.features.clone(), self.rows.count.clone()).trimmed()

    def begun(self, live: Live) -> tuple[TargetOutput, Feed]:
        self.cache.catch_up(self.rows, live)
        opened: tuple[TargetOutput, Feed] = self.cache.opened(live.root)
        return opened

    def ended(self) -> None:
        self._open.copy_(self.cache.open)
        self.cache.open, self.cache.states = self._open, self._states  # states are new in every round

    def observe(self, live: Live, step: Step) -> None:
        self._note(emitted_rows(step, self.columns))

    def _note(self, rows: Rows) -> None:
        """Put rows into the buffers; those in front of the first column do not count."""
        columns = min(rows.features.shape[1], self.rows.features.shape[1])
        self.rows.features[:, -columns:].copy_(rows.features[:, -columns:])
        self.rows.count.copy_(rows.count)


NAME = "_mmspec_heads"
"""The attribute of a target's embedding that holds its heads."""
MOST = 4
"""Heads that are kept for a target."""


class _Heads:
    """Heads of one target, the latest one last. A copy is empty: they hold the target's modules."""

    def __init__(self) -> None:
        self.heads: list[Any] = []

    def __reduce__(self) -> tuple[type["_Heads"], tuple[()]]:
        return _Heads, ()


def twin_of(head: Borrowing) -> Any:
    """An earlier head that drafts as this one does, for the same target; or the head itself, which is kept."""
    known = vars(head.borrowed[0]).setdefault(NAME, _Heads()).heads
    twin = next((other for other in reversed(known) if other is head or _same(other, head)), head)
    known[:] = [*[other for other in known if other is not twin][1 - MOST :], twin]
    return twin


def _same(one: Any, other: Any) -> bool:
    """True if two heads have the same class, settings, target and weights."""
    # The plain attributes of a head; those of torch begin with an underscore
    plain = [{name: it for name, it in vars(head).items() if not name.startswith("_")} for head in (one, other)]
    if type(one) is not type(other) or plain[0] != plain[1]:
        return False
    if any(a is not b for a, b in zip(one.borrowed, other.borrowed, strict=True)):
        return False
    mine, its = (dict(chain(head.named_parameters(), head.named_buffers())) for head in (one, other))
    return mine.keys() == its.keys() and all(
        (value.device, value.dtype) == (its[name].device, its[name].dtype) and torch.equal(value, its[name])
        for name, value in mine.items()
    )
