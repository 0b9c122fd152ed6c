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
target's noise of the position that the piece would have as a unit; no distribution is needed. Under `rejection` a unit
has the paper's: q'(t) = Π q(d_j) of a joined token, and q'(d₁) = q(d₁) - q'(t) of its first piece. Taken alone these
are exact for one n-gram only: what other n-grams would have got is not known, because their pieces were not drawn; nor
does it say that behind d₁, where it was not joined, no d₂ comes. So the two steps, first piece and token, are coupled
one behind the other (`mmspec.core.distributions.grouped`), and what a unit tells about the pieces behind it is taken
off these. Of n-grams that begin alike the last piece is drawn, and the ones before it are given (`drawn_from`).
Learning while it serves: `learn=` (`mmspec_zoo.vocabularies.lesson`).
Not built: pieces that the target lacks as tokens, which are drafted only as parts of an n-gram.
Guarantee: that of the rule, `match` or `rejection`: joining changes what is proposed, never what is written.
Knobs: `k` (pieces of a draft); `capacity` (n-grams; more remember rarer tokens, and take longer to compare); `ngram`
(most pieces of a token); `stop` (γ: less drafts less; `mmspec_zoo.vocabularies.stop_head`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import Categorical, Distribution, Grouped, take_nodes
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
from mmspec_zoo.vocabularies.lesson import TwoVocabularies
from mmspec_zoo.vocabularies.stop_head import Guessing, stop_head


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
        self._spelling, self._sizes = spelling, length
        # `[draft]` int64: the target's unit of each piece; -1 where there is none
        self.unit_of = torch.full((vocabulary.draft_vocab + 1,), -1, device=draft_of.device)
        self.unit_of[draft_of] = torch.arange(len(draft_of), device=draft_of.device)
        self.unit_of = self.unit_of[:-1]
        slots = max(1, min(capacity, int(self._fits.sum())))
        # `[slot]` int64: the tokens, the latest first, and when each was emitted last; -1 in free slots
        self.tokens = torch.full((slots,), -1, dtype=torch.int64, device=draft_of.device)
        self.stamps = torch.full_like(self.tokens, -1)
        self._clock = 0

    def to(self, device: torch.device) -> None:
        for name in ("_fits", "_keys", "_spelling", "_sizes", "unit_of", "tokens", "stamps"):
            setattr(self, name, moved(getattr(self, name), device))

    @property
    def spelled(self) -> tuple[Tensor, Tensor]:
        """The pieces of every slot's token, `[slot, longest]`, -1 behind the last; and how many they are, 0 in free
        slots.
        """
        held = self.tokens >= 0
        return self._spelling[self.tokens], torch.where(held, self._sizes[self.tokens], 0)

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

    @property
    def begun(self) -> Tensor:
        """The pieces `[batch, piece]` at which units begin, in order, and then the others."""
        return (~self.begins).long().sort(dim=1, stable=True).indices

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
        first = self.begun
        order = torch.arange(first.shape[1], device=first.device)
        last = pad(first[:, 1:], (0, 1)) - 1
        last = torch.where(order == self.count[:, None] - 1, len(order) - 1, last)
        return self.units.gather(1, first), order < self.count[:, None], last


def drawn_from(cache: NgramCache, joined: Joined, q: Tensor) -> tuple[Tensor, Tensor]:
    """The distributions of the unit that begins at each piece, both `[batch, piece, vocab]`: of its first piece; and of
    the unit itself, given that piece. Columns where no unit begins hold anything.

    `q [batch, piece, vocab]` is what each piece was drawn from. The pieces behind a unit's beginning are followed as
    far as cached spellings go on with them. Decided last is the piece that ends the longest spelling, or that leaves
    all of them: its probabilities are those of the tokens that end there, and of the unit that there is without them.
    All pieces in front of it are given, to this unit and to those behind it.
    """
    number, vocab = q.shape[1:]
    spelled, sizes = cache.spelled
    units, order = cache.unit_of[joined.pieces.clamp(min=0)], torch.arange(number, device=q.device)
    laws, given = q, torch.zeros_like(joined.begins)
    firsts, insides = [], []
    for start in range(number):
        window = pad(joined.pieces, (0, cache.longest), value=-2)[:, start : start + cache.longest]
        alike = (spelled == window[:, None]).long().cumprod(-1).sum(-1) * (sizes > 0)  # [batch, slot]
        walked = alike.amax(1, keepdim=True)
        whole = (alike == sizes) & (sizes > 0)
        furthest = alike == walked
        leaf = (whole & furthest).any(1, keepdim=True) & ~(furthest & (sizes > walked)).any(1, keepdim=True)
        depth = walked - leaf.long()
        decided = start + depth
        law = take_nodes(laws, decided.clamp(max=number - 1))[:, 0]
        child = cache.unit_of[spelled.T[depth[:, 0].clamp(max=cache.longest - 1)].clamp(min=0)]  # [batch, slot]
        below, ends = (alike >= depth) & (sizes > depth), sizes == depth + 1
        deeper = _marked(below & ~ends, child, vocab)
        ending = below & ends & ~deeper.gather(1, child)
        others = ~_marked(below, child, vocab)
        longest = torch.where(whole & (sizes <= depth), sizes, 0).max(1)
        without = torch.where(longest.values > 0, cache.tokens[longest.indices], units[:, start])[:, None]
        tokens = cache.tokens.clamp(min=0).expand_as(child)
        inside = torch.zeros_like(law).scatter_add(1, tokens, ending * law.gather(1, child))
        inside = inside.scatter_add(1, without, (law * others).sum(1, keepdim=True))
        closed = given | (joined.pieces < 0)
        open_ = (walked > 0) & (decided < number) & ~closed.gather(1, decided.clamp(max=number - 1))
        firsts.append(torch.where(given[:, start, None], _point(units[:, start], vocab), laws[:, start]))
        insides.append(torch.where(open_, inside, _point(joined.units[:, start], vocab)))
        begins = joined.begins[:, start, None]
        given = given | (begins & (order >= start) & (order < start + walked.clamp(min=1)))
        left = begins & open_ & ~leaf & (order == decided)
        laws = torch.where(left[..., None], laws * others[:, None], laws)
    return _normalised(torch.stack(firsts, 1)), _normalised(torch.stack(insides, 1))


def _normalised(chances: Tensor) -> Tensor:
    return chances / chances.sum(-1, keepdim=True).clamp(min=1e-30)


def _marked(mask: Tensor, units: Tensor, vocab: int) -> Tensor:
    """The units that are among `units [batch, slot]` where `mask` is True: `[batch, vocab]` bool."""
    """True for units that are among `units [batch, slot]` where `mask` is True: `[batch, vocab]` bool."""
    found = torch.zeros(len(mask), vocab + 1, dtype=torch.bool, device=mask.device)
    return found.scatter(1, torch.where(mask, units, vocab), True)[:, :vocab]


def _point(units: Tensor, vocab: int) -> Tensor:
    return torch.nn.functional.one_hot(units, vocab).float()


class JoiningChain(Chain):
    """The shape of one draft: a chain of pieces, drawn with the noise of the positions that their units have; `draft_of
    [target]` are the draft ids of the target's units, and `room [batch]` says how many pieces a row may have: the
    others are joined to nothing. A row ends where the chance that all of its pieces are accepted falls below `least`.
    """

    def __init__(self, cache: NgramCache, draft_of: Tensor, noise: DraftNoise, room: Tensor, least: float) -> None:
        super().__init__()
        self._cache, self._draft_of, self._noise, self._room = cache, draft_of, noise, room
        self._least, self._chance = least, torch.ones_like(room, dtype=torch.float32)[:, None]
        self.joined = Joined.none(len(noise.round.emitted), draft_of.device)  # the pieces so far, and their units

    def level(self, frontier: Frontier, depth: int) -> Level:
        if self._noise.shared and not frontier.greedy:
            noise = self._noise.chain(1, depth).at(self.joined.count[:, None])
            frontier = replace(frontier, noise=noise)
        level, there = super().level(frontier, depth), depth <= self._room[:, None]
        if self.ends and frontier.auxiliary is not None:
            self._chance = self._chance * frontier.auxiliary
            level = replace(level, valid=level.valid & (self._chance >= self._least))
        piece = torch.where(there & level.valid, self._draft_of[level.units], -2)
        self.joined = self.joined.added(level.units, piece, self._cache)
        return level

    @property
    def ends(self) -> bool:
        return self._least > 0


@dataclass(frozen=True)
class OmniDraftOptions(SmallModelOptions):
    capacity: Annotated[int, Field(ge=1, le=2**16)] = option(
        4096, "n-grams that are remembered; of more, those used longest ago are dropped"
    )
    ngram: Annotated[int, Field(ge=2, lt=LONGEST)] = option(4, "most pieces of an n-gram")
    stop: Annotated[float, Field(gt=0, le=1)] = option(
        1.0, "γ: a draft ends where some piece is refused with a larger chance, by a head that learns; 1: never"
    )


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
        self.head = stop_head(self._small, options.model) if options.stop < 1 else None
        self.offers, self.needs = OMNIDRAFT.offers, OMNIDRAFT.needs

    def bind(self, target: Target) -> None:
        super().bind(target)
        self.ngrams = None
        if isinstance(self.model, TranslatedTarget):
            cache = NgramCache(self.model.vocabulary, self.options.capacity, self.options.ngram)
            self.ngrams = cache if cache.possible else None
            if self.head is not None:
                self.model = TranslatedTarget(Guessing(self._small, self.head), self.model.vocabulary)

    def lesson(self, loss: str, depth: int) -> TwoVocabularies:
        """The small model's lesson between calls; arguments and errors as in `Learns`."""
        ids = self._small.vocab or 0
        one = VocabularyMap.padded(ids, ids)
        vocabulary = self.model.vocabulary if isinstance(self.model, TranslatedTarget) else one
        return TwoVocabularies(self._small, self._target, vocabulary, loss, self.head)

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
            return super().propose(state, k, noise)
        room = self._bounds(state, k)[1]
        room = state.room if room is None else room
        memory.shape = chain = JoiningChain(
            self.ngrams, memory.cache.vocabulary.draft_of, noise, room, 1 - self.options.stop
        )
        drafted = super().propose(state, k, noise)
        if not drafted.units.shape[1]:
            return drafted
        assert drafted.score is not None
        units, exist, last = chain.joined.listed()
        memory.last, memory.near_end = last, _near_end(state, k)
        score = take_nodes(drafted.score, last.clamp(min=0))
        valid = exist & drafted.valid.gather(1, last.clamp(min=0))
        return Draft.chain(units, self._drawn(chain.joined, drafted.distribution), valid, score)

    def _drawn(self, joined: Joined, pieces: Distribution | None) -> Grouped | None:
        """The distributions of the units, of pieces drawn from distributions over units."""
        if not isinstance(pieces, Categorical):
            return None
        assert self.ngrams is not None
        first, inside = drawn_from(self.ngrams, joined, pieces.on(None))
        group = torch.arange(first.shape[-1], device=first.device)
        spelled, sizes = self.ngrams.spelled
        named = torch.where(sizes > 0, self.ngrams.tokens, len(group))
        group = pad(group, (0, 1)).scatter(0, named, self.ngrams.unit_of[spelled[:, 0].clamp(min=0)])[:-1]
        begins = joined.begun
        return Grouped(Categorical(first), Categorical(inside), group).take(begins)

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
