"""`omnidraft`: a smaller model with another tokenizer, whose pieces are joined to the target's tokens.

OmniDraft (arXiv 2507.02659). Tokens that both vocabularies have are drafted as they are (the direct map,
`mmspec.hosts.vocabulary`). Where the target emits a token that the small model can only spell in several pieces, the
n-gram of these pieces is learned; when the small model drafts the n-gram again, its token is proposed in their place
(`joining`), and so can be accepted: without it, the first piece would be refused. The cache is kept from call to call,
and is of one target: a new one begins with every `bind`.
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

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.draft_model import DraftModelMemory
from mmspec.core.drafters.emitted import emitted_units
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.translated import TranslatedTarget
from mmspec.hosts.vocabulary import LONGEST
from mmspec.kits.text.small_model import SmallModelDrafter, SmallModelOptions
from mmspec_zoo.specs import OMNIDRAFT
from mmspec_zoo.vocabularies.joining import JoiningChain, NgramCache


@dataclass(frozen=True)
class OmniDraftOptions(SmallModelOptions):
    capacity: Annotated[int, Field(ge=1, le=2**16)] = field(
        default=4096, metadata={"help": "n-grams that are remembered; of more, those used longest ago are dropped"}
    )
    ngram: Annotated[int, Field(ge=2, lt=LONGEST)] = field(  # longer spellings may lack their beginning
        default=4, metadata={"help": "most pieces of an n-gram"}
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
    rows = zip(state.host_emitted, state.host_done, state.host_pads or [0] * state.rows, strict=True)
    left = [min(state.reach, context + pads) - emitted for emitted, done, pads in rows if not done]
    return min(left, default=0) <= 2 * (k + 1)
