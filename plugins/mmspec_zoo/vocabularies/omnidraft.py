"""`omnidraft`: a smaller model with another tokenizer, whose pieces are joined to the target's tokens.

OmniDraft (arXiv 2507.02659). Tokens that both vocabularies have are drafted as they are (the direct map,
`mmspec.hosts.vocabulary`). Where the target emits a token that the small model can only spell in several pieces, the
n-gram of these pieces is learned; when the small model drafts the n-gram again, its token is proposed in their place,
and so can be accepted: without it, the first piece would be refused. Both are kept: the draft model goes on behind its
pieces, the target verifies the units. The cache is kept from call to call, and is of one target: a new one begins with
every `bind`. Its keys are tuples of draft ids, its values tokens that the target was seen to emit and the draft model
lacks: the pieces of a token that the target never writes in one piece must not be joined. Only tokens are kept that can
be drafted: of two to `longest` pieces, each of which the target has as a token, too. Of more than `capacity` tokens,
those emitted longest ago are dropped (LRU).
A round drafts `k` pieces, which are at most `k` units. With one tokenizer nothing is joined: `draft-model` would draft
the same.
The paper could not be read here, only our notes: the matching of n-grams and the cache's bound are a reconstruction.

What q is. Under `match` a piece is drawn from the small model's distribution over the tokens that both have, with the
target's noise of the position that the piece would have as a unit. A joined token follows from its pieces, and the
draft says of no unit what it was drawn from: it is a point mass, with which every rule for chains is exact. The paper's
q of a joined token, the product of its pieces' probabilities, taken off the first piece, is not built.
Not built either: pieces that the target lacks as tokens, which are drafted only as parts of an n-gram; the acceptance
head that ends drafts early (the policy `confidence` does, by the small model's probabilities); the hybrid distillation
while decoding, whose loss counts joined tokens, too: `learning=` trains small models over one vocabulary alone, and
`mmspec train drafter` before they are used.
Guarantee: `match`'s: joining changes what is proposed, never what is written.
Knobs: `k` (pieces of a draft); `capacity` (n-grams; more remember rarer tokens, and take longer to compare); `ngram`
(most pieces of a token).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.draft_model import DraftModelMemory
from mmspec.core.drafters.emitted import emitted_units
from mmspec.core.drafters.shapes import Chain, Frontier, Level
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import moved
from mmspec.core.types import Draft, Step
from mmspec.hosts.translated import TranslatedTarget
from mmspec.hosts.vocabulary import LONGEST, VocabularyMap
from mmspec.kits.text.small_model import SmallModelDrafter, SmallModelOptions
from mmspec.registry.options import option
from mmspec_zoo.specs import OMNIDRAFT


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
        """The target's token `[batch]` of the longest n-gram with which drafted pieces end, of equally long ones the
        latest token, -1 where there is none; and the number of its pieces.

        `pieces [batch, longest]` are the last draft ids, -2 where there are fewer; `begins [batch, longest]` bool says
        whether a unit begins one, two, … pieces before the end.
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
    """The shape of one draft: a chain of pieces, drawn with the noise of the positions that their units have; `draft_of
    [target]` are the draft ids of the target's units.
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


@dataclass(frozen=True)
class OmniDraftOptions(SmallModelOptions):
    capacity: Annotated[int, Field(ge=1, le=2**16)] = option(
        4096, "n-grams that are remembered; of more, those used longest ago are dropped"
    )
    ngram: Annotated[int, Field(ge=2, lt=LONGEST)] = option(4, "most pieces of an n-gram")


@dataclass
class OmniDraftMemory(DraftModelMemory):
    # `[batch, unit]` int64: the last piece of every unit of this round's draft; None if there is none
    last: Tensor | None = None
    # Whether some row may end within this round's draft, so that the small model was not fed all of it
    near_end: bool = False


class OmniDraft(SmallModelDrafter):
    offers, needs = OMNIDRAFT.offers, OMNIDRAFT.needs

    def __init__(self, options: OmniDraftOptions = OmniDraftOptions()) -> None:
        self.ngrams: NgramCache | None = None
        super().__init__(options, OMNIDRAFT.name)
        self.offers, self.needs = OMNIDRAFT.offers, OMNIDRAFT.needs  # units that are joined have no distribution

    def bind(self, target: Target) -> None:
        super().bind(target)
        self.ngrams = None
        if isinstance(self.model, TranslatedTarget):
            cache = NgramCache(self.model.vocabulary, self.options.capacity, self.options.ngram)
            self.ngrams = cache if cache.possible else None

    def start(self, state: State, inputs: Any) -> OmniDraftMemory:
        memory = OmniDraftMemory(**vars(super().start(state, inputs)))
        if self.ngrams is not None:
            self.ngrams.to(state.root.device)
            if state.step is not None:
                self.ngrams.learn(*emitted_units(state, state.step))
        return memory

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: OmniDraftMemory = state.memory
        memory.last = None
        if self.ngrams is None:
            return replace(super().propose(state, k, noise), distribution=None)
        memory.shape = chain = JoiningChain(self.ngrams, memory.cache.vocabulary.draft_of, noise)
        drafted = super().propose(state, k, noise)
        if not drafted.units.shape[1]:
            return drafted
        assert drafted.score is not None
        units, exist, last = chain.joined.listed()
        memory.last, memory.near_end = last, _near_end(state, k)
        score = take_nodes(drafted.score, last.clamp(min=0))
        return Draft.chain(units, valid=exist & drafted.valid.gather(1, last.clamp(min=0)), score=score)

    def observe(self, state: State, step: Step) -> None:
        memory: OmniDraftMemory = state.memory
        if self.ngrams is not None:
            self.ngrams.learn(*emitted_units(state, step))
        if memory.last is None or memory.scratch is None:
            super().observe(state, step)
            return
        fed = memory.scratch.fed.valid[:, 1:]  # whether a piece is in the small model's cache, behind the root
        last = memory.last[:, : step.draft.nodes - 1]
        order = torch.arange(last.shape[1], device=last.device)
        there = pad(fed, (0, 1)).gather(1, last.clamp(0, fed.shape[1])) & (last < fed.shape[1])
        accepted = order < torch.minimum(step.count - 1, step.verdict.length)[:, None]
        kept = (accepted & there).long().cumprod(1).sum(1)
        pieces = pad(last + 1, (1, 0)).gather(1, kept[:, None])[:, 0]
        going = step.count > 0
        path = torch.arange(1, fed.shape[1] + 1, device=last.device).expand(state.rows, -1)
        self.model.commit(memory.cache, path, torch.where(going, pieces + 1, 0))
        memory.seen = memory.seen + torch.where(going, kept + 1, 0)
        own = step.draft.nodes == memory.last.shape[1] + 1 and not memory.near_end
        memory.lag = 1 if own else step.draft.index.deepest + 1
        memory.scratch = None


def _near_end(state: State, k: int) -> bool:
    """True if some row may end within a draft of `k` units, or within the next one: the host may be a round late."""
    context = state.limit if state.context is None else state.context - state.prompt_length
    rows = zip(state.host.emitted, state.host.done, state.host.pads or [0] * state.rows, strict=True)
    left = [min(state.reach, context + pads) - emitted for emitted, done, pads in rows if not done]
    return min(left, default=0) <= 2 * (k + 1)
