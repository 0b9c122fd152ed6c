"""The n-gram cache: which pieces of the draft model make one token of the target, for the tokens emitted lately.

OmniDraft (arXiv 2507.02659). A key is a tuple of draft ids, its value a token that the target has and the draft model
lacks; the key is that token's spelling. The cache holds tokens that the target was seen to emit, and no others: the
pieces of a token that the target never writes in one piece must not be joined. Of more than `capacity` tokens, those
emitted longest ago are dropped (LRU).
Only tokens are kept that can be drafted: of two to `longest` pieces, each of which the target has as a token, too.
The paper could not be read here: the policy of dropping and its bound are a reconstruction.
All is on the device, without a host sync.
"""

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.transfer import moved
from mmspec.hosts.vocabulary import VocabularyMap


class NgramCache:
    """N-grams of draft ids that stand for one token of the target: at most `capacity`, of at most `longest` pieces.

    Attributes:
        tokens: `[slot]` int64: the tokens, the latest first; -1 in free slots.
        stamps: `[slot]` int64: when each of them was emitted last; -1 in free slots.
    """

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
        self.tokens = torch.full((slots,), -1, dtype=torch.int64, device=draft_of.device)
        self.stamps = torch.full_like(self.tokens, -1)
        self._clock = 0

    def to(self, device: torch.device) -> None:
        """Go on on a device."""
        for name in ("_fits", "_keys", "_sizes", "tokens", "stamps"):
            setattr(self, name, moved(getattr(self, name), device))

    @cached_property
    def possible(self) -> int:
        """How many tokens of the target the cache may ever hold."""
        return int(self._fits.sum())

    @property
    def entries(self) -> dict[tuple[int, ...], int]:
        """What the cache holds, the latest first; for looking at it on the host."""
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
        """The longest n-gram with which drafted pieces end; of equally long ones that of the latest token.

        Args:
            pieces: `[batch, longest]`: the last draft ids; -2 where there are fewer.
            begins: `[batch, longest]` bool: whether a unit begins one, two, … pieces before the end.

        Returns:
            `[batch]` the target's token, -1 where there is none; and the number of its pieces.
        """
        keys, sizes = self._keys[self.tokens], self._sizes[self.tokens]
        same = ((keys == pieces[:, None]) | (keys < 0)).all(-1)  # [batch, slot]
        fits = same & (self.tokens >= 0) & begins[:, sizes.clamp(max=self.longest) - 1]
        best = torch.where(fits, sizes * (self._clock + 1) + self.stamps, -1).max(1)
        return torch.where(best.values >= 0, self.tokens[best.indices], -1), sizes[best.indices]
