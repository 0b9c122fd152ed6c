"""Counter-based noise: Philox-4x32-10 (Salmon et al., 2011).

Counter = (unit id / 4, address, lane, round), key = 64 bits a row. Integers and uniforms are equal on every device.
E = -log1p(-u): an exponential race argmax(p / E) is decided by small E, that is, where the float grid of u is finest.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.noise import Lane, Noise, unmoved

_MASK = 0xFFFFFFFF
_ROUNDS = 10
MOST_AHEAD, NUMBERS_AHEAD = 64, 2**18
"""Positions that are made ahead, and numbers that they may be."""


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10: four broadcastable counter words and two key words to four words.

    All words are int64 holding 32 bits. The 64-bit product of two words wraps to the right bit pattern in int64.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    shape = torch.broadcast_shapes(c0.shape, c1.shape, c2.shape, c3.shape)
    return c0.expand(shape), c1.expand(shape), c2.expand(shape), c3.expand(shape)


def uniform_of(words: Tensor) -> Tensor:
    """32-bit words to float32 in (0, 1): never 0, never 1, finest near 0."""
    return ((words.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)


@dataclass(frozen=True)
class PhiloxNoise:
    """Counter-based noise at given addresses.

    Attributes:
        key: `[batch, 2]` int64, two 32-bit words a row.
        address: `[batch, node]` int64 (or `[1, node]`): positions or node ids.
        round: `[batch, 1]` int64: 0 for noise by position, the round's own number for fresh noise.
        stream: The lane.
    """

    key: Tensor
    address: Tensor
    round: Tensor
    stream: Lane = Lane.UNIT

    def lane(self, lane: Lane) -> "PhiloxNoise":
        return replace(self, stream=lane)

    def at(self, index: Tensor) -> "PhiloxNoise":
        rows = max(len(self.address), len(index))
        return replace(self, address=self.address.expand(rows, -1).gather(1, index.expand(rows, -1)))

    def exponential(self, size: int) -> Tensor:
        return -torch.log1p(-uniform_of(self._words(size)))

    def exponential_at(self, ids: Tensor) -> Tensor:
        four = torch.stack(self._blocks(ids // 4), -1)
        return -torch.log1p(-uniform_of(four.gather(-1, (ids % 4)[..., None])[..., 0]))

    def uniform(self) -> Tensor:
        return uniform_of(self._words(1)[..., 0])

    def normal(self, *unit: int) -> Tensor:
        count = int(torch.Size(unit).numel())
        pairs = uniform_of(self._words(2 * count)).unflatten(-1, (count, 2))
        radius = torch.sqrt(-2 * torch.log(pairs[..., 0]))
        return (
            (radius * torch.cos(2 * torch.pi * pairs[..., 1]))
            .unflatten(-1, unit or (1,))
            .reshape(*pairs.shape[:2], *unit)
        )

    def _words(self, count: int) -> Tensor:
        block = torch.arange((count + 3) // 4, device=self.key.device)
        return torch.stack(self._blocks(block[None, None]), -1).flatten(-2)[..., :count]

    def _blocks(self, block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lane = torch.full((), int(self.stream), dtype=torch.int64, device=self.key.device)
        counter = (block, self.address[..., None], lane, self.round[..., None])
        return philox(counter, (self.key[:, 0, None, None], self.key[:, 1, None, None]))


@dataclass(frozen=True)
class Ahead:
    """Exp(1) of some positions and the next ones.

    Attributes:
        first: The first position of every row.
        values: `[batch, position, size]`.
    """

    first: Sequence[int]
    values: Tensor

    def read(self, host_emitted: Sequence[int], count: int) -> Tensor | None:
        """`[batch, count, size]` from the positions `host_emitted` on; None where they are not all there."""
        offsets = [now - first for now, first in zip(host_emitted, self.first, strict=True)]
        if min(offsets) < 0 or max(offsets) + count > self.values.shape[1]:
            return None
        if min(offsets) == max(offsets):
            return self.values[:, offsets[0] : offsets[0] + count]
        at = torch.arange(count, device=self.values.device) + torch.tensor(offsets, device=self.values.device)[:, None]
        return self.values.gather(1, at[..., None].expand(-1, -1, self.values.shape[2]))


@dataclass(frozen=True)
class Buffered:
    """The noise of consecutive positions, read from what was made ahead.

    Attributes:
        noise: It.
        host_emitted: The first position of every row.
        ahead: By size; what is made is kept there.
    """

    noise: PhiloxNoise
    host_emitted: Sequence[int]
    ahead: dict[int, Ahead]

    def lane(self, lane: Lane) -> Noise:
        return self if lane == self.noise.stream else self.noise.lane(lane)

    def at(self, index: Tensor) -> Noise:
        return self.noise.at(index)

    def exponential(self, size: int) -> Tensor:
        rows, count = self.noise.address.shape
        further = min(MOST_AHEAD, NUMBERS_AHEAD // (rows * size))
        if further <= count:
            return self.noise.exponential(size)
        known = self.ahead.get(size)
        values = None if known is None else known.read(self.host_emitted, count)
        if values is None:
            address = self.noise.address[:, :1] + torch.arange(further, device=self.noise.address.device)
            made = replace(self.noise, address=address).exponential(size)
            self.ahead[size] = Ahead(list(self.host_emitted), made)
            values = made[:, :count]
        return values

    def exponential_at(self, ids: Tensor) -> Tensor:
        return self.noise.exponential_at(ids)

    def uniform(self) -> Tensor:
        return self.noise.uniform()

    def normal(self, *unit: int) -> Tensor:
        return self.noise.normal(*unit)


class PhiloxSource:
    """`noise="philox"`: a key a row; a row's numbers depend neither on its batch nor on the draft.

    On the CPU, noise by position is made ahead: a few numbers cost as much as many, and drafts ask for most of them
    again in the next round.
    """

    def __init__(self, key: Tensor) -> None:
        self.key = key
        self._ahead: dict[int, Ahead] = {}

    @classmethod
    def seeded(cls, seed: int | Sequence[int], rows: int, device: torch.device | str = "cpu") -> "PhiloxSource":
        """One seed for all rows (the row's index is folded in), or one seed a row.

        Raises:
            ValueError: As many seeds as rows were expected.
        """
        if isinstance(seed, int):
            seeds, index = [seed] * rows, torch.arange(rows, device=device)
        else:
            seeds, index = list(seed), torch.zeros(rows, dtype=torch.int64, device=device)
        if len(seeds) != rows:
            raise ValueError(f"{len(seeds)} seeds for {rows} rows; give one integer, or one seed a row")
        low = torch.tensor([s & _MASK for s in seeds], dtype=torch.int64, device=device)
        high = torch.tensor([(s >> 32) & _MASK for s in seeds], dtype=torch.int64, device=device)
        zero = torch.zeros_like(index)
        words = philox((index, zero, zero + int(Lane.KEY), zero), (low, high))
        return cls(torch.stack(words[:2], -1))

    def begin(self, host_emitted: Sequence[int]) -> None:
        """Nothing is buffered."""

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> Noise:
        address = emitted[:, None] + torch.arange(deepest + 1, device=emitted.device)
        noise = PhiloxNoise(self.key, address, torch.zeros_like(emitted)[:, None])
        return Buffered(noise, host_emitted, self._ahead) if emitted.device.type == "cpu" else noise

    def fresh(self, emitted: Tensor, first: int, count: int) -> PhiloxNoise:
        address = torch.arange(first, first + count, device=emitted.device)[None]
        return PhiloxNoise(self.key, address, emitted[:, None] + 1)

    def sheltered(self) -> AbstractContextManager[None]:
        return unmoved(self.key.device)

    def finish(self, steps: int) -> None:
        """Nothing outside was touched."""
