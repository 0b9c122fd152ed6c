"""`noise="torch"`: the numbers that stock sampling would draw.

`torch.multinomial(p, 1)` is `argmax(p / E)` with one `[batch, vocab]` block of Exp(1) drawn from the generator at every
decoding step. This source draws these blocks in order, keeps them while they are needed, and at the end leaves the
generator where stock decoding would leave it: `model.generate(do_sample=True)` gives the same tokens for the same
`torch.manual_seed` with and without speculation, and so does everything that is sampled after it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.noise import SpreadNoise, Substream
from mmspec.core.philox import PhiloxNoise, PhiloxSource


@dataclass(frozen=True)
class TorchNoise:
    """Blocks `emitted + 0 … deepest` of every row, for exponential races of dense distributions only."""

    source: "TorchSource"
    host_emitted: Sequence[int]
    deepest: int

    def substream(self, substream: Substream) -> "TorchNoise":
        if substream is not Substream.UNIT:
            raise ValueError("torch's generator has one stream: only the rule 'match' can use noise='torch'")
        return self

    def at(self, index: Tensor) -> SpreadNoise:
        return SpreadNoise(self, index)

    def exponential(self, size: int) -> Tensor:
        return self.source.blocks(self.host_emitted, self.deepest, size)

    def exponential_at(self, ids: Tensor) -> Tensor:
        raise ValueError("noise='torch' needs dense distributions; use noise='philox' for sparse ones")

    def uniform(self) -> Tensor:
        raise ValueError("noise='torch' has exponentials only; use noise='philox'")

    def normal(self, *unit: int) -> Tensor:
        raise ValueError("noise='torch' has exponentials only; use noise='philox'")


class TorchSource:
    """Stock sampling's blocks, buffered.

    Args:
        generator: The generator that stock sampling would use.
        rows: Rows of the batch, finished ones included: stock sampling draws for them, too.
        device: Device of the blocks.
    """

    def __init__(self, generator: torch.Generator, rows: int, device: torch.device) -> None:
        self._generator = generator
        self._rows = rows
        self._device = device
        self._blocks: list[Tensor] = []
        self._states: list[Tensor] = [generator.get_state()]
        self._dropped = 0
        self._sheltering = False
        self._fresh = PhiloxSource.seeded(generator.initial_seed() & (2**63 - 1), rows, device)

    def begin(self, host_emitted: Sequence[int]) -> None:
        surplus = max(0, min(host_emitted) - self._dropped)
        surplus = min(surplus, len(self._blocks))
        del self._blocks[:surplus], self._states[:surplus]
        self._dropped += surplus

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> TorchNoise:
        return TorchNoise(self, host_emitted, deepest)

    def fresh(self, emitted: Tensor, first: int, count: int) -> PhiloxNoise:
        return self._fresh.fresh(emitted, first, count)

    def blocks(self, host_emitted: Sequence[int], deepest: int, size: int) -> Tensor:
        """`[batch, deepest + 1, size]`: row b's slice of the blocks `host_emitted[b] … host_emitted[b] + deepest`."""
        for _ in range(max(host_emitted) + deepest + 1 - self._dropped - len(self._blocks)):
            # `multinomial` draws in the dtype of its probabilities, which is float32 whatever torch's default.
            block = torch.empty(self._rows, size, dtype=torch.float32, device=self._device)
            if self._sheltering:
                self._generator.set_state(self._states[-1])
            self._blocks.append(block.exponential_(1, generator=self._generator))
            self._states.append(self._generator.get_state())
        first = [e - self._dropped for e in host_emitted]
        if min(first) == max(first):
            return torch.stack(self._blocks[first[0] : first[0] + deepest + 1], 1)
        rows = [torch.stack([b[i] for b in self._blocks[f : f + deepest + 1]]) for i, f in enumerate(first)]
        return torch.stack(rows)

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
        # If no block was drawn ahead, what others drew after the last block stays drawn, as in stock decoding.
        if self._dropped <= steps < self._dropped + len(self._blocks):
            keep = steps - self._dropped
            del self._blocks[keep:], self._states[keep + 1 :]
            self._generator.set_state(self._states[-1])
