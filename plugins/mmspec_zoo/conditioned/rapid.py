"""`rapid`: a model on a shortened prompt drafts for the model on the whole one.

RAPID (arXiv 2502.20330; its released code). Where prompts are long, the pass of a target is its cache's reading; a
draft model that reads what was retrieved from the prompt has a short cache, and may be the target itself, or
even a larger model. The two prompts are kept in step: both models read what was emitted.
With `eta` above 0, as released and in the method, the target is mixed with the model on the shortened prompt: long
prompts distract models, which the paper's better answers are due to. It is another text than the target's own, and
reports say so; `eta=0` leaves the target as it is. With z the target's
scores, p = softmax(z), q the other's distribution, and g = p - q where q is at least `alpha` times its largest value,
else 0, the mixed distribution is p̂ = softmax(z - eta · g): what the other finds likelier than the target becomes
likelier, and the reverse. p̂ is a distribution of the text so far alone: it depends on no draft, so that every rule is
exact for it, `match` with the same seed and whoever drafts. The released code accepts by p̂ and draws what replaces a
refused unit from norm(max(p - q, p - p̂, 0)), and the unit behind an accepted draft from p: it follows neither p nor p̂.
The call's temperature and other processors act on the scores z - eta · g. It costs a pass of the second model beside
every pass of the first one.
What is retrieved: the paper embeds chunks of text with a retrieval model (BGE-M3), and keeps the 16 best of 512 tokens
whose cosine with the question is at least 0.3. So does `embed`, which is a library's function of texts to vectors, as
`SentenceTransformer("BAAI/bge-m3").encode`. Without it chunks are scored by BM25 over token ids: where `eta` is 0, what
is kept never decides the output, ids are all that a target knows of a prompt, and no second model has to be loaded, or
be of the prompt's language. Names, numbers and words that the end of a prompt asks about are found by it; what is said
in other words is not. Chunks stay in their order. Those that share no token with the end are left out.
Guarantee: the rule's; with respect to p̂ where `eta` is above 0. Under the released rule the output follows neither.
Knobs: `eta` (0: the target alone), `alpha` (higher changes fewer units); `first`, `chunk`, `chunks`, `end` (more is
accepted more often, and costs more); `embed`; `context` (ids, or a function of a prompt's ids, in the place of what is
retrieved); `k`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.capabilities import Bounded, RunsModel
from mmspec.core.drafters.draft_model import DraftModel, DraftModelMemory
from mmspec.core.drafters.shapes import Chain
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.prompt import as_ids
from mmspec.kits.text.small_model import SmallModelOptions, in_target_ids, load_small_model, target_tokenizer
from mmspec.registry.options import option
from mmspec_zoo.conditioned.paired import PairedTarget, padded
from mmspec_zoo.specs import RAPID


@dataclass(frozen=True)
class RapidOptions(SmallModelOptions):
    """Options of `rapid`; without `model`, the target drafts for itself."""

    first: Annotated[int, Field(ge=0)] = option(4, "tokens of a prompt's beginning that are read")
    chunk: Annotated[int, Field(ge=1)] = option(512, "tokens of a chunk")
    chunks: Annotated[int, Field(ge=0)] = option(
        16, "most chunks that are read; more is closer to the target, and slower"
    )
    end: Annotated[int, Field(ge=1)] = option(512, "tokens of a prompt's end that are read, and which ask for chunks")
    embed: Any = option(
        None, "a function of texts to vectors [n, width], by which chunks are scored; default: BM25 over ids"
    )
    context: Any = option(None, "ids, or a function of a prompt's ids that returns some, instead of chunks")
    eta: Annotated[float, Field(ge=0)] = option(
        0.0, "how far the target is mixed with the model on the short prompt; 0 is exact"
    )
    alpha: Annotated[float, Field(ge=0, le=1)] = option(
        0.1, "share of the short prompt's best probability from which tokens are mixed"
    )


@dataclass
class RapidMemory(DraftModelMemory):
    short: int = 0  # tokens of the longest short prompt
    passes: int = 0  # passes of the draft model so far


class Rapid(DraftModel):
    """Drafts a chain with a model that reads a part of the prompt."""

    offers, needs = RAPID.offers, RAPID.needs

    def __init__(self, options: RapidOptions = RapidOptions()) -> None:
        self.options, self.shape, self.runs_target = options, Chain(), options.model is None
        self._small = None if options.model is None else load_small_model(options, RAPID.name)
        self._scores: Scores = bm25
        self.wrt = f"p̂ = softmax(z - {options.eta:g}·g), mixed with the short prompt's" if options.eta else ""

    def wrap(self, target: Target) -> Target:
        whole = target.target if isinstance(target, AugmentedTarget) else target
        if self.options.embed is not None:
            tokenizer = target_tokenizer(whole, self.options)
            if tokenizer is None:
                raise ValueError("embed= reads texts, and the target was not loaded with a tokenizer: give tokenizer=")
            self._scores = partial(embedded, self.options.embed, tokenizer)
        if not self.options.eta:
            return whole
        model = self._own(whole) if self._small is None else self._small.model
        # As a target, and no draft model: that one would go on without scores where its context ends.
        return AugmentedTarget(whole, own_target(model), self.prompt, self.options.eta, self.options.alpha)

    def bind(self, target: Target) -> None:
        whole = target.target if isinstance(target, AugmentedTarget) else target
        if self._small is None:
            self.model = own_target(self._own(whole), drafting=True)
        else:
            self.model = in_target_ids(self._small, whole, self.options)
        super().bind(target)

    def start(self, state: State, inputs: Any) -> RapidMemory:
        short = self.prompt(state.history[:, : state.prompt_length], state.pads)
        memory = super().start(state, short)
        return RapidMemory(**vars(memory), short=short["input_ids"].shape[1])

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft = super().propose(state, k, noise)
        if self.runs_target:  # a mixed target runs the model on the short prompt, too, once a round
            state.report.inner_passes = state.memory.passes + (state.report.rounds if self.options.eta else 0)
        return draft

    def prompt(self, units: Tensor, pads: Tensor) -> dict[str, Tensor]:
        """The short prompts of prompts `[batch, length]` behind `pads [batch]` of padding."""
        return padded([self._short(row[pad:]) for row, pad in zip(units, pads.tolist(), strict=True)])

    def _short(self, ids: Tensor) -> Tensor:
        options = self.options
        if options.context is None:
            return shortened(ids, options.first, options.chunk, options.chunks, options.end, self._scores)
        given: Callable[[Tensor], Any] | Tensor | Sequence[int] = options.context
        context = as_ids(given(ids) if callable(given) else given)
        return torch.cat([context.to(ids.device, ids.dtype), ids[-options.end :]])

    @staticmethod
    def _own(target: Target) -> Any:
        """The target's model, which drafts for itself."""
        if not isinstance(target, RunsModel):
            raise ValueError(f"{type(target).__name__} runs no model that could draft for itself; give drafter=<model>")
        if "codebook" in target.offers:
            raise ValueError(f"{type(target).__name__} writes pictures, whose prompts cannot be shortened")
        return target.model

    def _feed(self, memory: DraftModelMemory, draft: Draft, first: int) -> TargetOutput:
        assert isinstance(memory, RapidMemory)
        memory.passes += 1
        return super()._feed(memory, draft, first)

    def _left(self, state: State) -> list[int] | None:
        if not isinstance(self.model, Bounded) or self.model.context is None:
            return None
        return [self.model.context - state.memory.short - n for n in state.host.emitted]


SATURATION = 1.5
"""k₁ of BM25: how soon further occurrences of a token count no more. Chunks are equally long, so that b is 0."""


FLOOR = 0.3
"""The least cosine of a chunk with the prompt's end that counts: the authors' `similarity_threshold`."""

Scores = Callable[[Tensor, tuple[Tensor, ...]], Tensor]
"""From a query's ids and those of pieces of a text to what each piece says to it: `[piece]`, 0 for nothing."""


def shortened(ids: Tensor, first: int, chunk: int, chunks: int, end: int, scores_of: Scores) -> Tensor:
    """The part of a prompt `[n]` that is read: its first tokens, the chunks that its last ones ask for, and these."""
    between = len(ids) - first - end
    if between <= chunk * chunks:
        return ids
    pieces = ids[first : len(ids) - end].split(chunk)
    scores = scores_of(ids[len(ids) - end :], pieces)
    best = scores.argsort(descending=True, stable=True)[:chunks]
    kept = best[scores[best] > 0].sort().values.tolist()
    return torch.cat([ids[:first], *(pieces[number] for number in kept), ids[len(ids) - end :]])


def embedded(embed: Callable[[list[str]], Any], tokenizer: Any, query: Tensor, pieces: tuple[Tensor, ...]) -> Tensor:
    """`Scores` by the cosine of vectors, which a library's function makes of texts."""
    vectors = torch.as_tensor(embed([tokenizer.decode(ids) for ids in (query, *pieces)])).float()
    cosine = torch.cosine_similarity(vectors[1:], vectors[:1]).to(query.device)
    return torch.where(cosine >= FLOOR, cosine, 0.0)


def bm25(query: Tensor, pieces: tuple[Tensor, ...]) -> Tensor:
    """Scores of pieces of a text, ids `[n]` each, as answers to a query of ids: `[piece]`, 0 where they share none."""
    asked = query.unique()
    shared = [piece[torch.isin(piece, asked)] for piece in pieces]
    counts = torch.stack([torch.bincount(torch.searchsorted(asked, ids), minlength=len(asked)) for ids in shared])
    holding = (counts > 0).sum(0)
    rarity = torch.log1p((len(pieces) - holding + 0.5) / (holding + 0.5))
    return (rarity * counts * (SATURATION + 1) / (counts + SATURATION)).sum(1)


class AugmentedTarget(PairedTarget):
    """A target whose scores are mixed with another one's, which reads short prompts."""

    def __init__(
        self, target: Target, second: Target, prompt: Callable[[Tensor, Tensor], Any], eta: float, alpha: float
    ) -> None:
        if target.vocab is None or target.vocab != second.vocab:
            raise ValueError(
                f"the second model has {second.vocab} unit ids and the target {target.vocab}; their distributions are "
                "mixed over one vocabulary"
            )
        super().__init__(target, second, prompt)
        self.eta, self.alpha = eta, alpha

    def together(self, output: TargetOutput, second: TargetOutput) -> TargetOutput:
        assert output.logits is not None and second.logits is not None, "both are models over a vocabulary"
        return TargetOutput(logits=mixed(output.logits, second.logits, self.eta, self.alpha), null=output.null)


def mixed(scores: Tensor, second: Tensor, eta: float, alpha: float) -> Tensor:
    """z - eta · g, float32, of both models' scores, `[…, vocab]`."""
    z, q = scores.float(), second.float().softmax(-1)
    apart = torch.where(q >= alpha * q.amax(-1, keepdim=True), z.softmax(-1) - q, 0.0)
    return z - eta * apart
