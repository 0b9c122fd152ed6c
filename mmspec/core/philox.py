"""Counter-based noise: Philox-4x32-10 (Salmon et al., 2011).

Counter = (unit id / 4, address, substream, round), key = 64 bits per row. Integers and uniforms are equal on every
device. E = -log1p(-u): small E decide an exponential race argmax(p / E), and they come from small u, where floats are
finest.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core import kernels
from mmspec.core.noise import Noise, Substream, unmoved
from mmspec.core.transfer import on_device
from mmspec.core.tree import picked

_MASK = 0xFFFFFFFF
_ROUNDS = 10
MOST_POSITIONS, MOST_NUMBERS = 64, 2**18
"""Limits of noise that is computed ahead: positions, and numbers in all."""


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10: four words from four broadcastable counter words and two key words.

    Words are int64 with 32 bits in use. The 64-bit product of two words wraps to the right bit pattern in int64.
    """
    c0, c1, c2, c3 = counter
    # Inductor makes `arange * constant` an index, which kernels hold in int32; behind a mask it is a number.
    order = torch.arange(_ROUNDS, device=c3.device) & _MASK
    k0, k1 = (_round_keys(word, order * step) for word, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
    for round in range(_ROUNDS):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        # Lower words may keep bits above theirs until the next round masks them: only factors must be clean.
        c0, c1, c2, c3 = ((p1 >> 32) ^ c1 ^ k0[round]) & _MASK, p1, ((p0 >> 32) ^ c3 ^ k1[round]) & _MASK, p0
    shape = torch.broadcast_shapes(c0.shape, c1.shape, c2.shape, c3.shape)
    return c0.expand(shape), (c1 & _MASK).expand(shape), c2.expand(shape), (c3 & _MASK).expand(shape)


def _round_keys(word: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
    """A key word in every round, all at once: one launch a round would cost as much as the rounds themselves."""
    return ((word[..., None] + steps) & _MASK).unbind(-1)


def uniform_of(words: Tensor) -> Tensor:
    """32-bit words to float32 in (0, 1): never 0, never 1, finest near 0."""
    return ((words.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)


def _launches(device: torch.device) -> bool:
    """True if Triton's kernels draw; where torch traces, its compiler makes one of what it finds."""
    return kernels.available(device) and not torch.compiler.is_compiling()


@dataclass(frozen=True)
class PhiloxNoise:
    """Counter-based noise at given addresses."""

    key: Tensor  # `[batch, 2]` int64, two 32-bit words per row
    address: Tensor  # `[batch, node]` int64 (or `[1, node]`): positions or node ids
    round: Tensor  # `[batch, 1]` int64: 0 for noise by position, the round's own number for fresh noise
    # The substream in use; `[batch, node]` int64 where nodes use different ones
    current: Substream | Tensor = Substream.UNIT

    def substream(self, substream: Substream) -> "PhiloxNoise":
        return replace(self, current=substream)

    def where(self, mask: Tensor, substream: Substream) -> "PhiloxNoise":
        now = self.current if isinstance(self.current, Tensor) else int(self.current)
        return replace(self, current=torch.where(mask, int(substream), now))

    def at(self, index: Tensor) -> "PhiloxNoise":
        current = picked(self.current, index) if isinstance(self.current, Tensor) else self.current
        return replace(self, address=picked(self.address, index), current=current)

    def exponential(self, size: int) -> Tensor:
        if _launches(self.key.device):
            return self._in_one_launch(size, exponential=True)
        return -torch.log1p(-uniform_of(self._words(size)))

    def exponential_at(self, ids: Tensor) -> Tensor:
        if _launches(self.key.device):
            from mmspec.core.kernels.random import exponentials_at

            return exponentials_at(ids, self.key, self.address, self.round, self.current)
        words = torch.stack(self._blocks(ids // 4), -1)
        return -torch.log1p(-uniform_of(words.gather(-1, (ids % 4)[..., None])[..., 0]))

    def uniform(self) -> Tensor:
        return self._uniforms(1)[..., 0]

    def normal(self, *unit: int) -> Tensor:
        count = int(torch.Size(unit).numel())
        pairs = self._uniforms(2 * count).unflatten(-1, (count, 2))
        radius = torch.sqrt(-2 * torch.log(pairs[..., 0]))  # Box and Muller (1958)
        return (radius * torch.cos(2 * torch.pi * pairs[..., 1])).reshape(*pairs.shape[:2], *unit)

    def _uniforms(self, count: int) -> Tensor:
        if _launches(self.key.device):
            return self._in_one_launch(count, exponential=False)
        return uniform_of(self._words(count))

    def _in_one_launch(self, count: int, exponential: bool) -> Tensor:
        from mmspec.core.kernels.random import numbers

        return numbers(self.key, self.address, self.round, self.current, count, exponential)

    def _words(self, count: int) -> Tensor:
        block = torch.arange((count + 3) // 4, device=self.key.device) & _MASK  # clean already, but see `philox`
        return torch.stack(self._blocks(block[None, None]), -1).flatten(-2)[..., :count]

    def _blocks(self, block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if isinstance(self.current, Tensor):
            substream = self.current[..., None]
        else:
            substream = torch.full((), int(self.current), dtype=torch.int64, device=self.key.device)
        counter = (block, self.address[..., None], substream, self.round[..., None])
        return philox(counter, (self.key[:, 0, None, None], self.key[:, 1, None, None]))


@dataclass(frozen=True)
class Buffer:
    """Exp(1) of consecutive positions."""

    first: Sequence[int]  # the first position of every row
    values: Tensor  # `[batch, position, size]`

    def read(self, host_emitted: Sequence[int], count: int) -> Tensor | None:
        """`[batch, count, size]` from the positions `host_emitted` on; None if the buffer lacks any of them."""
        offsets = [now - first for now, first in zip(host_emitted, self.first, strict=True)]
        if min(offsets) < 0 or max(offsets) + count > self.values.shape[1]:
            return None
        if min(offsets) == max(offsets):
            return self.values[:, offsets[0] : offsets[0] + count]
        slot = torch.arange(count, device=self.values.device)
        index = slot + torch.tensor(offsets, device=self.values.device)[:, None]
        return self.values.gather(1, index[..., None].expand(-1, -1, self.values.shape[2]))


@dataclass(frozen=True)
class BufferedNoise:
    """The noise of consecutive positions, computed ahead in blocks."""

    noise: PhiloxNoise  # the same noise, not buffered
    host_emitted: Sequence[int]  # the first position of every row
    buffers: dict[int, Buffer]  # the call's buffers by size; new blocks are kept there

    def substream(self, substream: Substream) -> Noise:
        return self if substream == self.noise.current else self.noise.substream(substream)

    def where(self, mask: Tensor, substream: Substream) -> Noise:
        return self.noise.where(mask, substream)

    def at(self, index: Tensor) -> Noise:
        return self.noise.at(index)

    def exponential(self, size: int) -> Tensor:
        rows, count = self.noise.address.shape
        positions = min(MOST_POSITIONS, MOST_NUMBERS // (rows * size))
        if positions <= count:
            return self.noise.exponential(size)
        buffer = self.buffers.get(size)
        values = None if buffer is None else buffer.read(self.host_emitted, count)
        if values is None:
            # Not the rows' own positions: one that waits is elsewhere than the host says, and goes on later.
            device = self.noise.address.device  # the default one may be another
            first = torch.tensor(self.host_emitted, device=device)
            address = first[:, None] + torch.arange(positions, device=device)
            block = replace(self.noise, address=address).exponential(size)
            self.buffers[size] = Buffer(list(self.host_emitted), block)
            values = block[:, :count]
        return values

    def exponential_at(self, ids: Tensor) -> Tensor:
        return self.noise.exponential_at(ids)

    def uniform(self) -> Tensor:
        return self.noise.uniform()

    def normal(self, *unit: int) -> Tensor:
        return self.noise.normal(*unit)


class PhiloxSource:
    """`noise="philox"`: one key per row; a row's numbers depend neither on its batch nor on the draft.

    On the CPU, noise by position is computed ahead: a few numbers cost as much as many, and most of them are needed
    again in the next round.

    Args:
        key: `[batch, 2]` int64, two 32-bit words per row.
        ahead: Whether noise is computed ahead on the CPU; if not, all of it is a function of tensors alone.
    """

    def __init__(self, key: Tensor, ahead: bool = True) -> None:
        self.key = key
        self._ahead = ahead and key.device.type == "cpu"
        self._buffers: dict[int, Buffer] = {}

    @classmethod
    def seeded(cls, seed: int | Sequence[int], rows: int, device: torch.device | str = "cpu") -> "PhiloxSource":
        """One seed for all rows (the row's index is folded in), or one seed per row."""
        if isinstance(seed, int):
            seeds, index = [seed] * rows, torch.arange(rows, device=device)
        else:
            seeds, index = list(seed), torch.zeros(rows, dtype=torch.int64, device=device)
        if len(seeds) != rows:
            raise ValueError(f"{len(seeds)} seeds for {rows} rows; give one integer, or one seed a row")
        low = on_device([s & _MASK for s in seeds], index.device, torch.int64)
        high = on_device([(s >> 32) & _MASK for s in seeds], index.device, torch.int64)
        zero = torch.zeros_like(index)
        words = philox((index, zero, zero + int(Substream.KEY), zero), (low, high))
        return cls(torch.stack(words[:2], -1))

    @property
    def fresh_key(self) -> Tensor:
        return self.key

    def begin(self, host_emitted: Sequence[int]) -> None:
        """Does nothing: buffers need no notice."""

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> Noise:
        noise = self.by_tensors(emitted, deepest)
        return BufferedNoise(noise, host_emitted, self._buffers) if self._ahead else noise

    def by_tensors(self, emitted: Tensor, deepest: int, ahead: int = 0) -> PhiloxNoise:
        address = emitted[:, None] + torch.arange(deepest + 1, device=emitted.device)
        return PhiloxNoise(self.key, address, torch.zeros_like(emitted)[:, None])

    def fresh(self, emitted: Tensor, first: int, count: int) -> PhiloxNoise:
        address = torch.arange(first, first + count, device=emitted.device)[None]
        return PhiloxNoise(self.key, address, emitted[:, None] + 1)

    def sheltered(self) -> AbstractContextManager[None]:
        return unmoved(self.key.device)

    def finish(self, steps: int) -> None:
        """Does nothing: torch's generator was not used."""
