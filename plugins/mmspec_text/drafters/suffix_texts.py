"""Where the end of a text occurred before: in texts that are being written, and in many that were.

Both answer with places: the length of the suffix that stands in front of each, and the units behind it. Of a suffix
that occurs more often than is asked for, the latest places are taken.
`Written` compares a text with its own end. `Remembered` has all texts in blocks of one array, and for each of six
lengths of n-grams a hash table of the latest place behind one; every place knows the place before it, as in LZ77's
chains. What a table says is compared with the units, so a collision costs a comparison and no more. A unit takes 30
bytes, and memory is touched when it is first needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

BREAK = -1
"""The id before and behind a text."""
LONGEST = 64
"""Units of a suffix that are compared."""
LENGTHS = (1, 2, 4, 8, 16, 32)
"""Lengths of the n-grams whose places are chained."""
FRESH = 192
"""Units of a block that are its own; the `LONGEST` before them are those of the text before."""
BLOCK = LONGEST + FRESH
Ints = NDArray[np.int32]
Ids = Sequence[int] | Ints


@dataclass(frozen=True)
class Found:
    """Places, the latest first."""

    matched: NDArray[np.int64]  # `[place]`: units before it that are the text's last ones, at least 1
    behind: Ints  # `[place, unit]`: what follows, `BREAK` behind the end
    places: NDArray[np.int64]  # `[place]`, as its source counts

    @classmethod
    def of(cls, windows: Ints, tail: Ints, behind: Ints, places: NDArray[np.int64]) -> "Found":
        """Those of some places which follow the text's last unit and have a unit behind them.

        `windows [place, unit]` are the units before each, of which the last ones are compared with `tail`.
        """
        same = windows[:, ::-1][:, : len(tail)] == tail[::-1]
        matched = np.logical_and.accumulate(same, 1).sum(1)
        good = (matched > 0) & (behind[:, 0] != BREAK) if behind.shape[1] else matched < 0
        return cls(matched[good], behind[good], places[good])

    @classmethod
    def joined(cls, found: Sequence["Found"]) -> "Found":
        """The places of several sources, those of the first one first."""
        found = [one for one in found if len(one.places)]
        if len(found) < 2:
            return found[0] if found else NOWHERE
        parts = ([getattr(one, part) for one in found] for part in ("matched", "behind", "places"))
        return cls(*(np.concatenate(part) for part in parts))


NOWHERE = Found(np.empty(0, np.int64), np.empty((0, 0), np.int32), np.empty(0, np.int64))


class Written:
    """A text that grows."""

    def __init__(self, units: Sequence[int] = ()) -> None:
        self._all = np.full(LONGEST, BREAK, np.int32)  # `LONGEST` breaks, the text, and breaks
        self.length = 0
        self.extend(units)

    @property
    def units(self) -> Ints:
        """The text."""
        return self._all[LONGEST : LONGEST + self.length]

    def extend(self, units: Sequence[int]) -> None:
        """Write more of it."""
        missing = self.length + len(units) + 2 * LONGEST - len(self._all)
        if missing > 0:
            self._all = np.concatenate([self._all, np.full(missing + len(self._all), BREAK, np.int32)])
        self._all[LONGEST + self.length : LONGEST + self.length + len(units)] = units
        self.length += len(units)

    def found(self, tail: Ints, most: int, length: int) -> Found:
        """The places where a text's end, `tail`, occurred, `length` units behind each: for every length of a suffix
        the `most` latest ones.
        """
        text = self._all[: LONGEST + self.length]
        places = alive = np.flatnonzero(text[LONGEST - 1 : -1] == tail[-1]) + LONGEST
        if not len(alive):
            return NOWHERE
        if len(alive) > most:
            taken = [alive[-most:]]
            for back in range(2, len(tail) + 1):
                alive = alive[-64 * most :]
                alive = alive[text[alive - back] == tail[-back]]
                taken.append(alive[-most:])
                if len(alive) <= most:
                    break
            places = np.unique(np.concatenate(taken))
        places = places[::-1]
        windows = text[places[:, None] + np.arange(-LONGEST, 0)]
        behind = self._all[(places[:, None] + np.arange(length)).clip(max=len(self._all) - 1)]
        return Found.of(windows, tail, behind, places)


class Remembered:
    """Texts that were written, at most about `capacity` units of them.

    When it is full the oldest block is written over, unless it was used since: then it is taken for new, once. So
    blocks that nobody used for longest go first (the clock's approximation of the least recently used).
    """

    def __init__(self, capacity: int) -> None:
        self.blocks = max(2, -(-capacity // FRESH))
        self._slots = max(10, (self.blocks * BLOCK // 4).bit_length())  # bits of a hash
        self._units = np.zeros((self.blocks, BLOCK), np.int32)
        self._next = np.zeros(self.blocks, np.int32)  # of a block: which one goes on with its text
        self._last = np.zeros(self.blocks, np.int32)  # the one that its text goes on from; both are checked
        self._used = np.zeros(self.blocks, bool)
        # Place 0 has no n-gram before it: it stands for none.
        self._earlier = np.zeros((len(LENGTHS), self.blocks * BLOCK), np.int32)
        self._latest = np.zeros((len(LENGTHS), 1 << self._slots), np.int32)
        self._hand, self._lock = 0, Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    def add(self, before: Ids, units: Ids, last: int | None = None) -> int | None:
        """Remember `units`, which came after `before`, of which only the end is read. `last` is the block of that end,
        and the last block of these is returned.
        """
        text = np.concatenate([np.full(LONGEST, BREAK, np.int32), before[-LONGEST:], units]).astype(np.int32)
        with self._lock:
            for first in range(len(text) - len(units), len(text), FRESH):
                block = self._free()
                part = text[first - LONGEST : first + FRESH]
                self._units[block, : len(part)], self._units[block, len(part) :] = part, BREAK
                self._next[block], self._last[block] = block, block
                if last is not None and last != block:
                    self._next[last], self._last[block] = block, last
                self._link(block)
                last = block
        return last

    def found(self, tail: Ints, most: int, length: int) -> Found:
        """As of `Written`, for each of `LENGTHS` the `most` latest places; `length` is at most `FRESH`."""
        with self._lock:
            places = np.array(self._chains(tail, most), np.int64)
            if not len(places):
                return NOWHERE
            flat = self._units.reshape(-1)
            ahead = places[:, None] + np.arange(length)
            block = places[:, None] // BLOCK
            following = self._next[block]
            goes_on = (following != block) & (self._last[following] == block)
            over = ahead - (block + 1) * BLOCK
            behind = flat[
                np.where(over < 0, ahead, np.where(goes_on, following * BLOCK + LONGEST + over, ahead - over - 1))
            ]
            behind = np.where((over >= 0) & ~goes_on, BREAK, behind)
            return Found.of(flat[places[:, None] + np.arange(-LONGEST, 0)], tail, behind, places)

    def use(self, places: NDArray[np.int64]) -> None:
        """Note that drafts were made of what is there."""
        self._used[places // BLOCK] = True

    def _free(self) -> int:
        """The next block that may be written over. Used ones on the way to it are chained again, as the latest."""
        while self._used[block := self._hand]:
            self._used[block] = False
            self._hand = (block + 1) % self.blocks
            self._link(block)
        self._hand = (block + 1) % self.blocks
        return block

    def _link(self, block: int) -> None:
        """Chain a block's own places behind the latest ones with the same hashes."""
        units = self._units[block]
        places = np.arange(LONGEST, LONGEST + int((units[LONGEST:] != BREAK).sum()))
        for table, value in enumerate(hashes(units)):
            slot = (value[places - LENGTHS[table]] >> np.uint64(64 - self._slots)).astype(np.int64)
            order = np.argsort(slot, kind="stable")
            slot, place = slot[order], (block * BLOCK + places[order]).astype(np.int32)
            first = np.concatenate([[True], slot[1:] != slot[:-1]])
            self._earlier[table, place] = np.where(first, self._latest[table, slot], np.roll(place, 1))
            last = np.roll(first, -1)
            self._latest[table, slot[last]] = place[last]

    def _chains(self, tail: Ints, most: int) -> list[int]:
        """The latest places behind the n-grams that end a text, `most` of each length, the latest first."""
        places, total = set[int](), self.blocks * BLOCK
        end = self._hand * BLOCK - 1  # the last place of the block that was written last
        for table, value in enumerate(hashes(tail[-max(LENGTHS) :])):
            earlier, age = self._earlier[table], -1
            place = int(self._latest[table, int(value[-1]) >> (64 - self._slots)])
            for _ in range(most):
                # Where a place was written over, its chain ends: it would get younger.
                if not place or (end - place) % total <= age:
                    break
                places.add(place)
                place, age = int(earlier[place]), (end - place) % total
            if age < 0:  # where a gram did not occur, no longer one did
                break
        return sorted(places, key=lambda place: (end - place) % total)


def hashes(units: Ints) -> Iterator[NDArray[np.uint64]]:
    """For each of `LENGTHS`, as long as there are n-grams so long: a number for each, the first one's first."""
    value = (units.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for length in LENGTHS:
        if not len(value):
            return
        yield value
        # A gram of twice the length is two of this one; the shift brings high bits to where products keep them.
        mixed = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        value = mixed[length:] + value[:-length]
