"""A chain of the draft model's pieces, and the target's units that they make.

After every piece, the longest cached n-gram with which the pieces end is replaced by its token, if it begins where a
unit begins. Both are kept: the draft model goes on behind its pieces, the target verifies the units.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.drafters.shapes import Chain, Frontier, Level
from mmspec.core.noise import DraftNoise
from mmspec_zoo.vocabularies.ngrams import NgramCache


@dataclass(frozen=True)
class Joined:
    """Pieces and their units."""

    pieces: Tensor  # `[batch, piece]`: draft ids
    units: Tensor  # `[batch, piece]`: the target's unit that begins at a piece, if one does
    begins: Tensor  # `[batch, piece]` bool: whether one does

    @classmethod
    def none(cls, rows: int, device: torch.device) -> "Joined":
        """No pieces yet."""
        ids = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        return cls(ids, ids, ids.bool())

    @property
    def count(self) -> Tensor:
        """How many units there are: `[batch]`."""
        return self.begins.sum(1)

    def added(self, unit: Tensor, piece: Tensor, cache: NgramCache) -> "Joined":
        """With one more piece `[batch, 1]`, which is the unit `[batch, 1]` unless it ends an n-gram."""
        pieces, units = torch.cat([self.pieces, piece], 1), torch.cat([self.units, unit], 1)
        begins = pad(self.begins, (0, 1), value=True)
        number, longest = pieces.shape[1], cache.longest
        window = pad(pieces, (longest, 0), value=-2)[:, -longest:]
        token, size = cache.ending(window, pad(begins.flip(1), (0, longest))[:, :longest])
        order, found = torch.arange(number, device=pieces.device), (token >= 0)[:, None]
        first = (number - size)[:, None]
        units = torch.where(found & (order == first), token[:, None], units)
        return Joined(pieces, units, begins & ~(found & (order > first)))

    def listed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The units `[batch, piece]`, one behind the other; which of them exist; and the last piece of each."""
        first = (~self.begins).long().sort(dim=1, stable=True).indices
        order = torch.arange(first.shape[1], device=first.device)
        last = pad(first[:, 1:], (0, 1)) - 1
        last = torch.where(order == self.count[:, None] - 1, len(order) - 1, last)
        return self.units.gather(1, first), order < self.count[:, None], last


class JoiningChain:
    """The shape of one draft: a chain of pieces, drawn with the noise of the positions that their units have.

    `draft_of [target]` are the draft ids of the target's units.

    Attributes:
        joined: The pieces so far, and their units.
    """

    offers, needs, widest = frozenset({"chain"}), frozenset[str](), 1

    def __init__(self, cache: NgramCache, draft_of: Tensor, noise: DraftNoise) -> None:
        self._chain, self._cache, self._draft_of, self._noise = Chain(), cache, draft_of, noise
        self.joined = Joined.none(len(noise.round.emitted), draft_of.device)

    def levels(self, k: int) -> int:
        return self._chain.levels(k)

    def width(self, k: int) -> int:
        return self._chain.width(k)

    def fed(self, k: int) -> int:
        return self._chain.fed(k)

    def parents(self, k: int) -> tuple[int, ...] | None:
        return self._chain.parents(k)

    def level(self, frontier: Frontier, depth: int) -> Level:
        if self._noise.shared and not frontier.greedy:
            noise = self._noise.chain(1, depth).at(self.joined.count[:, None])
            frontier = replace(frontier, noise=noise)
        level = self._chain.level(frontier, depth)
        self.joined = self.joined.added(level.units, self._draft_of[level.units], self._cache)
        return level

    def choose(self, score: Tensor) -> Tensor | None:
        return None
