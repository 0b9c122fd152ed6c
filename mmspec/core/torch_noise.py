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


@dataclass(frozen=True)
class TorchNoise(RaceNoise):
    """Blocks `emitted + 0 … deepest` of every row."""

    name = "noise='torch'"
    advice = "use noise='philox'"

    source: "TorchSource"
    host_emitted: Sequence[int]
    deepest: int

    def at(self, index: Tensor) -> SpreadNoise:
        return SpreadNoise(self, index)

    def exponential(self, size: int) -> Tensor:
        return self.source.blocks(self.host_emitted, self.deepest, size)


class TorchSource:
    """Stock sampling's blocks.

    Of a block a row keeps its own numbers, while they are near its next position. Of every block that is still needed
    the generator's state is kept, so that rows that are far behind can make it again.

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
        self._size = 0
        self._rows = rows
        self._device = device
        self._states: list[Tensor] = [generator.get_state()]
        """The state before the block `_dropped`, and after every later block."""
        self._before: dict[int, Tensor] = {}
        """The state before a block, where it is not that after the block before, because others drew in between."""
        self._dropped = 0
        self._kept: list[dict[int, Tensor]] = [{} for _ in range(rows)]
        """Every row's numbers of some positions, `[size]` each."""
        self._first = [0] * rows
        self._span = 1
        self._sheltering = False
        self._fresh = PhiloxSource.seeded(generator.initial_seed() & (2**63 - 1), rows, device)

    def begin(self, host_emitted: Sequence[int]) -> None:
        surplus = max(0, min(host_emitted) - self._dropped)
        surplus = min(surplus, len(self._states) - 1)
        del self._states[:surplus]
        self._dropped += surplus
        self._before = {position: state for position, state in self._before.items() if position >= self._dropped}
        self._first = list(host_emitted)
        self._forget()

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> TorchNoise:
        return TorchNoise(self, host_emitted, deepest)

    def fresh(self, emitted: Tensor, first: int, count: int) -> PhiloxNoise:
        return self._fresh.fresh(emitted, first, count)

    @property
    def fresh_key(self) -> Tensor:
        return self._fresh.key

    def blocks(self, host_emitted: Sequence[int], deepest: int, size: int) -> Tensor:
        """`[batch, deepest + 1, size]`: row b's slice of the blocks `host_emitted[b] … host_emitted[b] + deepest`.

        Raises:
            RuntimeError: A CUDA graph is being captured.
        """
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "noise='torch' reads the generator's state, which is impossible while a CUDA graph is captured: draw "
                "its blocks outside of the graph, or use noise='philox'"
            )
        self._size = size
        self._first = [min(first, now) for first, now in zip(self._first, host_emitted, strict=True)]
        ends = [now + deepest + 1 for now in host_emitted]
        self._span = max(self._span, *(end - first for end, first in zip(ends, self._first, strict=True)))
        while self._drawn < max(ends):
            self._keep(self._drawn, self._next(size))
        wanted = [(row, p) for row, now in enumerate(host_emitted) for p in range(now, now + deepest + 1)]
        for row, position in wanted:
            if position not in self._kept[row]:
                self._keep(position, self._again(position, size))
        return torch.stack([self._kept[row][p] for row, p in wanted]).view(self._rows, deepest + 1, size)

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
        """Whether anything else drew from the generator since the last block."""
        return not torch.equal(self._generator.get_state(), self._states[-1])

    def finish(self, steps: int) -> None:
        if self._late is not None and self._size and steps:
            steps = min(steps + 1, self._late)
            while self._drawn < steps:
                self._next(self._size)
        # If no block was drawn ahead, what others drew after the last block stays drawn, as in stock decoding.
        if self._dropped <= steps < self._drawn:
            del self._states[steps - self._dropped + 1 :]
            self._before = {position: state for position, state in self._before.items() if position < steps}
            self._forget(steps)
            self._generator.set_state(self._states[-1])

    @property
    def _drawn(self) -> int:
        """The number of blocks that were drawn from the generator."""
        return self._dropped + len(self._states) - 1

    def _next(self, size: int) -> Tensor:
        """The next block `[batch, size]`."""
        if self._sheltering:
            self._generator.set_state(self._states[-1])
        elif self.disturbed:
            self._before[self._drawn] = self._generator.get_state()
        block = self._block(size)
        self._states.append(self._generator.get_state())
        return block

    def _again(self, position: int, size: int) -> Tensor:
        """A block that was drawn before; the generator is left where it is."""
        now = self._generator.get_state()
        self._generator.set_state(self._before.get(position, self._states[position - self._dropped]))
        block = self._block(size)
        self._generator.set_state(now)
        return block

    def _block(self, size: int) -> Tensor:
        # `multinomial` draws in the dtype of its probabilities, which is float32 whatever torch's default.
        block = torch.empty(self._rows, size, dtype=torch.float32, device=self._device)
        return block.exponential_(1, generator=self._generator)

    def _keep(self, position: int, block: Tensor) -> None:
        """Give a block to the rows that need it soon: a second span beside the first, for rows that are close."""
        near = [row for row, first in enumerate(self._first) if first <= position < first + 2 * self._span]
        for row in near:
            # A view would keep the whole block, which only pays if every row has one.
            self._kept[row][position] = block[row] if len(near) == self._rows else block[row].clone()

    def _forget(self, end: int | None = None) -> None:
        """Drop the numbers of positions that no row will need, or that would be drawn anew."""
        for row, first in enumerate(self._first):
            last = first + 2 * self._span if end is None else end
            self._kept[row] = {p: numbers for p, numbers in self._kept[row].items() if first <= p < last}
