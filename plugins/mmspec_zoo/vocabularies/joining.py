"""A chain of the draft model's pieces, and the target's units that they make.

After every piece, the longest cached n-gram with which the pieces end is replaced by its token, if it begins where a
unit begins. Both are kept: the draft model goes on behind its pieces, the target verifies the units.

The n-gram cache says which pieces make one token of the target, for the tokens emitted lately. A key is a tuple of
draft ids, its value a token that the target has and the draft model lacks; the key is that token's spelling. The cache
holds tokens that the target was seen to emit, and no others: the pieces of a token that the target never writes in one
piece must not be joined. Of more than `capacity` tokens, those emitted longest ago are dropped (LRU). Only tokens are
kept that can be drafted: of two to `longest` pieces, each of which the target has as a token, too.
The paper could not be read here: the policy of dropping and its bound are a reconstruction.
All is on the device, without a host sync.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.drafters.shapes import Chain, Frontier, Level
from mmspec.core.noise import DraftNoise
from mmspec.core.transfer import moved
from mmspec.hosts.vocabulary import VocabularyMap


class NgramCache:
    """N-grams of draft ids that stand for one token of the target: at most `capacity`, of at most `longest` pieces."""

    def __init__(self, vocabulary: VocabularyMap, capacity: int, longest: int) -> None:
        self.longest = longest
        draft_of, length = vocabulary.draft_of, vocabulary.length
        spelling = pad(vocabulary.spelling, (0, max(0, longest - vocabulary.longest)), value=-1)[:, :longest]
        shared = torch.zeros(vocabulary.draft_vocab + 1, dtype=torch.bool, device=draft_of.device)
        shared[draft_of] = True  # -1 is the last one, for what has no partner and for what is no piece
        order = torch.arange(longest, device=draft_of.device)
        self._fits = (draft_of < 0) & (length > 1) & (length <= longest) & shared[spelling].all(1)
        place = order - longest + length[:, None]  # keys end in the last column
        self._keys = torch.where(place >= 0, spelling.gather(1, place.clamp(0, longest - 1)), -1)
        self._sizes = length
        slots = max(1, min(capacity, int(self._fits.sum())))
        # `[slot]` int64: the tokens, the latest first, and when each was emitted last; -1 in free slots
        self.tokens = torch.full((slots,), -1, dtype=torch.int64, device=draft_of.device)
        self.stamps = torch.full_like(self.tokens, -1)
        self._clock = 0

    def to(self, device: torch.device) -> None:
        for name in ("_fits", "_keys", "_sizes", "tokens", "stamps"):
            setattr(self, name, moved(getattr(self, name), device))

    @cached_property
    def possible(self) -> int:
        """The number of tokens of the target that the cache may ever hold."""
        return int(self._fits.sum())

    @property
    def entries(self) -> dict[tuple[int, ...], int]:
        """The contents of the cache, the latest first; for looking at it on the host."""
        held = self.tokens[self.tokens >= 0].tolist()
        return {tuple(key for key in self._keys[token].tolist() if key >= 0): token for token in held}

    def learn(self, units: Tensor, emitted: Tensor) -> None:
        """Take in what the target emitted: ids `[batch, slot]`, and which of them were emitted, bool."""
        units, emitted = units.T.flatten(), emitted.T.flatten()  # by position: of a row, later units are newer
        new = torch.where(emitted & self._fits[units], units, -1)
        now = torch.where(new >= 0, self._clock + torch.arange(len(new), device=new.device), -1)
        self._clock += len(new)
        tokens, stamps = torch.cat([self.tokens, new]), torch.cat([self.stamps, now])
        again = (tokens[:, None] == new) & (stamps[:, None] < now)
        latest = torch.where(again.any(1), -1, stamps).topk(len(self.tokens))
        self.stamps = latest.values
        self.tokens = torch.where(latest.values >= 0, tokens[latest.indices], -1)

    def ending(self, pieces: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """The longest n-gram with which drafted pieces end; of equally long ones the latest token's.

        `pieces [batch, longest]` are the last draft ids, -2 where there are fewer; `begins [batch, longest]` bool says
        whether a unit begins one, two, … pieces before the end.

        Returns:
            `[batch]` the target's token, -1 where there is none; and the number of its pieces.
        """
        keys, sizes = self._keys[self.tokens], self._sizes[self.tokens]
        same = ((keys == pieces[:, None]) | (keys < 0)).all(-1)  # [batch, slot]
        fits = same & (self.tokens >= 0) & begins[:, sizes.clamp(max=self.longest) - 1]
        best = torch.where(fits, sizes * (self._clock + 1) + self.stamps, -1).max(1)
        return torch.where(best.values >= 0, self.tokens[best.indices], -1), sizes[best.indices]


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
        """The number of units: `[batch]`."""
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


class JoiningChain(Chain):
    """The shape of one draft: a chain of pieces, drawn with the noise of the positions that their units have.

    `draft_of [target]` are the draft ids of the target's units.
    """

    offers = frozenset({"chain"})

    def __init__(self, cache: NgramCache, draft_of: Tensor, noise: DraftNoise) -> None:
        super().__init__()
        self._cache, self._draft_of, self._noise = cache, draft_of, noise
        self.joined = Joined.none(len(noise.round.emitted), draft_of.device)  # the pieces so far, and their units

    def level(self, frontier: Frontier, depth: int) -> Level:
        if self._noise.shared and not frontier.greedy:
            noise = self._noise.chain(1, depth).at(self.joined.count[:, None])
            frontier = replace(frontier, noise=noise)
        level = super().level(frontier, depth)
        self.joined = self.joined.added(level.units, self._draft_of[level.units], self._cache)
        return level
