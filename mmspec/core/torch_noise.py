"""`noise="torch"`: the numbers that stock sampling would draw.

`torch.multinomial(p, 1)` is `argmax(p / E)` with one `[batch, vocab]` block of Exp(1) drawn from the generator at every
decoding step. This source draws these blocks in order, keeps them while they are needed, and at the end leaves the
generator where stock decoding would leave it: `model.generate(do_sample=True)` gives the same tokens for the same
`torch.manual_seed` with and without speculation, and so does everything that is sampled after it.

Equal draws need equal probabilities: top-p sums them in an order that on CUDA depends on the shape, so that a unit at
the edge of the nucleus may fall on either side there, as at a near-tie.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.noise import RaceNoise, SpreadNoise
from mmspec.core.philox import PhiloxNoise, PhiloxSource
from mmspec.core.transfer import on_device


@dataclass(frozen=True)
class TorchNoise(RaceNoise):
    """Blocks `emitted + 0 … deepest` of every row."""

    name = "noise='torch'"
    advice = "use noise='philox'"

    source: "TorchSource"
    emitted: Tensor
    host_emitted: Sequence[int]
    deepest: int
    ahead: int = 0  # by how much `emitted` may be beyond `host_emitted`

    def at(self, index: Tensor) -> SpreadNoise:
        return SpreadNoise(self, index)

    def exponential(self, size: int) -> Tensor:
        count = self.deepest + 1
        self.source.hold(self.host_emitted, self.ahead + count, size)
        return self.source.held(self.emitted, count)


class TorchSource:
    """Stock sampling's blocks.

    Of a block a row keeps its own numbers, while they are near its next position: in a ring on the device, from which
    they are picked without the host. Of every block that is still needed the generator's state is kept, so that rows
    that are far behind can make it again.

    Args:
        generator: The generator that stock sampling would use.
        rows: Rows of the batch, finished ones included: stock sampling draws for them, too.
        device: Device of the blocks.
        late: The most steps of the call, if stock sampling notices one step late that all rows have ended, and draws
            one block more; else None.
    """

    def __init__(self, generator: torch.Generator, rows: int, device: torch.device, late: int | None = None) -> None:
        self._generator = generator
        self._late = late
        self._rows = rows
        self._device = device
        self._states: list[Tensor] = [generator.get_state()]
        """The state before the block `_dropped`, and after every later block."""
        self._before: dict[int, Tensor] = {}
        """The state before a block, where it is not that after the block before, because others drew in between."""
        self._dropped = 0
        self._ring = torch.empty(0, rows, 0, device=device)
        """Of every row the numbers of consecutive positions: `[position % places, row, size]`."""
        self._first, self._end = [0] * rows, [0] * rows
        """The positions: from `_first` up to `_end`."""
        self._sheltering = False
        self._fresh = PhiloxSource.seeded(generator.initial_seed() & (2**63 - 1), rows, device)

    def begin(self, host_emitted: Sequence[int]) -> None:
        surplus = max(0, min(host_emitted) - self._dropped)
        surplus = min(surplus, len(self._states) - 1)
        del self._states[:surplus]
        self._dropped += surplus
        self._before = {position: state for position, state in self._before.items() if position >= self._dropped}
        for row, first in enumerate(host_emitted):
            self._move(row, first)

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> TorchNoise:
        return TorchNoise(self, emitted, host_emitted, deepest)

    def by_tensors(self, emitted: Tensor, deepest: int, ahead: int) -> TorchNoise:
        return TorchNoise(self, emitted, list(self._first), deepest, ahead)

    def fresh(self, emitted: Tensor, first: int, count: int) -> PhiloxNoise:
        return self._fresh.fresh(emitted, first, count)

    @property
    def fresh_key(self) -> Tensor:
        return self._fresh.key

    def hold(self, first: Sequence[int], count: int, size: int) -> None:
        """Let every row have its numbers of the `count` positions from `first` on, `size` of each."""
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "noise='torch' reads the generator's state, which is impossible while a CUDA graph is captured: draw "
                "its blocks outside of the graph, or use noise='philox'"
            )
        for row, position in enumerate(first):
            if position < self._first[row]:
                self._move(row, position)
        ends = [position + count for position in first]
        # As many more for rows that are close to each other.
        room = max(end - start for end, start in zip(ends, self._first, strict=True)) * (1 + (self._rows > 1))
        if room > len(self._ring):
            self._enlarge(room, size)
        while self._drawn < max(ends):
            self._next()
        for row, end in enumerate(ends):
            if self._end[row] < end:
                for position in range(self._end[row], min(self._drawn, self._first[row] + len(self._ring))):
                    self._again(position)

    def held(self, emitted: Tensor, count: int) -> Tensor:
        """Every row's numbers of the `count` positions from `emitted [batch]` on: `[batch, count, size]`."""
        places, rows, size = self._ring.shape
        place = (emitted[:, None] + torch.arange(count, device=emitted.device)) % places
        index = place * rows + torch.arange(rows, device=emitted.device)[:, None]
        return self._ring.view(-1, size).index_select(0, index.flatten()).view(rows, count, size)

    @contextmanager
    def sheltered(self) -> Iterator[None]:
        self._states[-1], self._sheltering = self._generator.get_state(), True
        try:
            yield
        finally:
            self._sheltering = False
            self._generator.set_state(self._states[-1])

    @property
    def disturbed(self) -> bool:
        """True if anything else drew from the generator since the last block."""
        return not torch.equal(self._generator.get_state(), self._states[-1])

    def finish(self, steps: int) -> None:
        if self._late is not None and len(self._ring) and steps:
            steps = min(steps + 1, self._late)
            while self._drawn < steps:
                self._next()
        # If no block was drawn ahead, what others drew after the last block stays drawn, as in stock decoding.
        if self._dropped <= steps < self._drawn:
            del self._states[steps - self._dropped + 1 :]
            self._before = {position: state for position, state in self._before.items() if position < steps}
            self._end = [min(end, max(steps, first)) for end, first in zip(self._end, self._first, strict=True)]
            self._generator.set_state(self._states[-1])

    @property
    def _drawn(self) -> int:
        """The number of blocks that were drawn from the generator."""
        return self._dropped + len(self._states) - 1

    def _next(self) -> None:
        """Draw the next block."""
        if self._sheltering:
            self._generator.set_state(self._states[-1])
        elif self.disturbed:
            self._before[self._drawn] = self._generator.get_state()
        self._draw(self._drawn)
        self._states.append(self._generator.get_state())

    def _again(self, position: int) -> None:
        """Draw a block that was drawn before; the generator is left where it is."""
        now = self._generator.get_state()
        self._generator.set_state(self._before.get(position, self._states[position - self._dropped]))
        self._draw(position)
        self._generator.set_state(now)

    def _draw(self, position: int) -> None:
        """Draw a block from where the generator is, and keep it for the rows that lack it next."""
        places = len(self._ring)
        held = zip(self._first, self._end, strict=True)
        near = [row for row, (first, end) in enumerate(held) if position == end and position < first + places]
        block = place = self._ring[position % places]
        if len(near) < self._rows:
            block = torch.empty_like(place)
        block.exponential_(1, generator=self._generator)
        for row in near:
            self._end[row] += 1
            if block is not place:
                place[row].copy_(block[row])

    def _move(self, row: int, first: int) -> None:
        """Let a row's positions begin at `first`; behind those that it had, it has none."""
        kept = self._first[row] <= first
        self._first[row], self._end[row] = first, max(first, self._end[row]) if kept else first

    def _enlarge(self, places: int, size: int) -> None:
        """Get a ring of so many places, with what the rows have."""
        before, rows = self._ring, range(self._rows)
        # `multinomial` draws in the dtype of its probabilities, which is float32 whatever torch's default.
        with torch.inference_mode(False):  # it outlives the block that it is made in
            self._ring = torch.empty(places, self._rows, size, dtype=torch.float32, device=self._device)
        kept = [(position, row) for row in rows for position in range(self._first[row], self._end[row])]
        if kept:
            index = [[position % n * self._rows + row for position, row in kept] for n in (len(before), places)]
            source, target = on_device(index, self._device, torch.int64)
            self._ring.view(-1, size).index_copy_(0, target, before.view(-1, size).index_select(0, source))
