"""`swift`: the target without some of its sub-layers drafts, and the set of them is searched while it writes.

SWIFT (Xia et al., arXiv 2410.06916), "on-the-fly self-speculative decoding". Attention and feed-forward parts are left
out one by one; the first and the last layer stay. A set of them is as good as its *matchness*: on the last `window`
units of the text, how often the model without the set finds the unit that followed likeliest, every position behind the
true text. Before a round, while the search goes on, one more set is measured. Sets are proposed at random; every
`BAYES`th one is the best of a Gaussian process over all sets that were tried, by its upper confidence bound. The best
set stays from call to call. A draft is a chain that ends where the drafter is
less sure than `sure`; beside each of its units stand the likeliest other ones, as many as the drafter's confidence
there says (confidence-aware candidates). The paper copies the target's cache for drafts; here they use its scratch
slots.
Guarantee: `match`'s, whatever is left out.
Knobs: `skip` (more left out drafts faster and worse), `sure` (higher ends drafts earlier), `nodes` (more are accepted,
and each costs), `window` (longer measures sets better and costs more), `k` (the longest draft).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.shapes import Frontier, Level
from mmspec.core.drafters.shapes.siblings import best_nodes, likeliest
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.target_cache import rewound
from mmspec.registry.options import option
from mmspec_zoo.self_drafting.shortened import ReadShare, SelfDrafting
from mmspec_zoo.specs import SWIFT

SKIPPED = 0.45  # the published share of the sub-layers between the first and the last layer that are left out
BAYES = 25
RANDOM = 256  # random sets among which the Gaussian process chooses
KAPPA, NOISE, LENGTH = 2.5, 1e-2, 1.0
"""Of the process: weight of its deviation and variance of an observation, as in the published code; a length scale."""
ENOUGH, IN_VAIN, MOST = 0.95, 300, 1000
"""The search is over at this matchness, after so many sets in a row that were no better, or after so many in all."""


def numbers_between(layers: int) -> list[int]:
    """The sub-layers that may be left out: all but the first and the last layer's."""
    return list(range(2, 2 * layers - 2))


def first_set(layers: int, size: int) -> frozenset[int]:
    """The set before any search: sub-layers of every other layer, from layer 1 on, `size` of them."""
    inner = numbers_between(layers)
    odd_first = sorted(inner, key=lambda number: (number // 2 + 1) % 2)
    return frozenset(odd_first[:size])


@dataclass
class SkipSearch:
    """The search for one model."""

    layers: int  # layers of the model
    size: int  # sub-layers of a set
    best: frozenset[int] = frozenset()  # the best set so far
    score: float = 0.0  # its matchness; 0 before any was measured
    # All sets that were measured, with their matchness
    tried: list[tuple[frozenset[int], float]] = field(default_factory=list)
    in_vain: int = 0  # sets in a row that were no better

    def __post_init__(self) -> None:
        self.best = first_set(self.layers, self.size)
        self._generator = torch.Generator().manual_seed(0)  # drafts are reproducible, too

    @property
    def over(self) -> bool:
        """True if no further set is tried."""
        alone = not 0 < self.size < len(numbers_between(self.layers))  # then there is one set
        return alone or self.score >= ENOUGH or self.in_vain >= IN_VAIN or len(self.tried) >= MOST

    def propose(self) -> frozenset[int]:
        """The next set to measure."""
        if not self.tried:
            return self.best
        return self._bayesian() if (len(self.tried) + 1) % BAYES == 0 else self._random()

    def observe(self, numbers: frozenset[int], matchness: float) -> None:
        """Keep a set if it is the best one."""
        self.tried.append((numbers, matchness))
        self.in_vain += 1
        if matchness > self.score:
            self.best, self.score, self.in_vain = numbers, matchness, 0

    def _random(self) -> frozenset[int]:
        inner = numbers_between(self.layers)
        order = torch.randperm(len(inner), generator=self._generator)[: self.size]
        return frozenset(inner[i] for i in order.tolist())

    def _bayesian(self) -> frozenset[int]:
        candidates = [self._random() for _ in range(RANDOM)]
        seen = self._points([numbers for numbers, _ in self.tried])
        values = torch.tensor([matchness for _, matchness in self.tried], dtype=torch.float64)
        bound = upper_bound(seen, values, self._points(candidates))
        return candidates[int(bound.argmax())]

    def _points(self, sets: Sequence[frozenset[int]]) -> Tensor:
        inner = numbers_between(self.layers)
        return torch.tensor([[number in one for number in inner] for one in sets], dtype=torch.float64)


def upper_bound(seen: Tensor, values: Tensor, points: Tensor) -> Tensor:
    """Mean plus `KAPPA` deviations of a Gaussian process with a Matérn kernel (ν = 5/2), at `points [n, dim]`: `[n]`.

    It was observed at `seen [m, dim]`, with `values [m]`, whose mean and deviation are taken out first; all is float64.
    """
    scale = values.std(correction=0).clamp(min=1e-12)
    among = _matern(seen, seen) + NOISE * torch.eye(len(seen), dtype=seen.dtype)
    between, factor = _matern(points, seen), torch.linalg.cholesky(among)
    weights = torch.cholesky_solve(((values - values.mean()) / scale)[:, None], factor)
    solved = torch.linalg.solve_triangular(factor, between.T, upper=False)
    deviation = (1 - solved.square().sum(0)).clamp(min=0).sqrt()
    return values.mean() + scale * ((between @ weights)[:, 0] + KAPPA * deviation)


def _matern(a: Tensor, b: Tensor) -> Tensor:
    distance = 5**0.5 * torch.cdist(a, b) / LENGTH
    return (1 + distance + distance.square() / 3) * (-distance).exp()


LEAST = (0.95, 0.8, 0.5, 0.0)
GREEDY, SAMPLED = (3, 5, 8, 10), (1, 3, 5, 10)
"""Published numbers of candidates of a depth, the chain's own node included, by the `LEAST` confidence they are for."""


@dataclass(frozen=True)
class Comb:
    """A chain whose every node has siblings, more of them where the drafter is less sure.

    Only the chain is continued. Of all candidates the `nodes` best by cumulative score, as in `rerank`, are
    verified, which bounds a pass; the published code verifies all.
    """

    nodes: int = 24  # nodes that are verified
    vocab: int = 10  # most candidates
    spread: float = 0.75  # as in `rerank`

    offers = frozenset({"tree"})
    needs = frozenset({"rerank"})

    @property
    def widest(self) -> int:
        return min(max(GREEDY), self.vocab)

    def levels(self, k: int) -> int:
        return min(k, self.nodes)

    def width(self, k: int) -> int:
        return min(self.nodes, self.widest * k)

    def fed(self, k: int) -> int:
        return max(0, self.levels(k) - 1)

    def parents(self, k: int) -> tuple[int, ...] | None:
        return None

    def level(self, frontier: Frontier, depth: int) -> Level:
        best, own = (each[:, 0] for each in likeliest(frontier, self.widest, self.spread))  # [batch, candidate]
        confidence = frontier.distribution.confidence().exp()  # [batch, 1]
        rank = torch.arange(best.shape[1], device=best.device)
        score = torch.where(rank < candidates(confidence, frontier.greedy), frontier.score + own, -torch.inf)
        parent, chain = torch.zeros_like(best[:1]), torch.zeros_like(best[:1, :1])
        return Level(best, parent, score, score > -torch.inf, frontier=chain, carried=confidence)

    def choose(self, score: Tensor) -> Tensor | None:
        return best_nodes(score, self.nodes)


def candidates(confidence: Tensor, greedy: bool) -> Tensor:
    """Candidates at nodes where the drafter is so sure: as `confidence`."""
    number = torch.zeros_like(confidence, dtype=torch.int64)
    for least, many in zip(LEAST, GREEDY if greedy else SAMPLED, strict=True):
        number = torch.where((number == 0) & (confidence >= least), many, number)
    return number


@dataclass(frozen=True)
class SwiftOptions:
    skip: Annotated[float, Field(ge=0, lt=1)] = option(SKIPPED, "share of the inner sub-layers that drafts leave out")
    sure: Annotated[float, Field(ge=0, le=1)] = option(
        0.8, "a draft ends behind a unit whose likeliest alternative is below this"
    )
    nodes: Annotated[int, Field(ge=1, le=256)] = option(
        16, "nodes that are verified; more are accepted, and each costs"
    )
    window: Annotated[int, Field(ge=1, le=256)] = option(32, "units of the text on which a set is measured")


class Swift:
    """Drafts without the best set of sub-layers that any of its calls has found."""

    needs, offers = SWIFT.needs, SWIFT.offers
    runs_target = True

    def __init__(self, options: SwiftOptions = SwiftOptions()) -> None:
        self.options, self.shape = options, Comb(options.nodes)

    def bind(self, target: Target) -> None:
        """Find the target's sub-layers."""
        self._own = SelfDrafting(target, "swift")
        inner = numbers_between(self._own.layers)
        if not inner:
            raise ValueError(f"swift keeps the first and the last layer, and the target has {self._own.layers} layers")
        assert self._own.sublayers.parts, "a layer has two"
        assert target.vocab is not None, "the target is discrete"
        self.shape = Comb(self.options.nodes, target.vocab)
        self._own.target.keep_all = True  # a set is measured from further back than a ring may reach
        self.search = SkipSearch(self._own.layers, round(self.options.skip * len(inner)))

    def width(self, k: int) -> int:
        return self.shape.width(k)

    def start(self, state: State, inputs: Any) -> ReadShare:
        return ReadShare()

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        written = min(n for n, done in zip(state.host.emitted, state.host.done, strict=True) if not done)
        if not self.search.over and written > self.options.window:
            numbers = self.search.propose()
            self.search.observe(numbers, self._matchness(state, numbers))
        return self._own.draft(self.search.best, state, self.shape, k, noise, partial(self._unsure, state))

    def observe(self, state: State, step: Step) -> None:
        """Does nothing: a draft leaves nothing behind."""

    def _unsure(self, state: State, level: Level) -> bool:
        """True if the draft is long enough for every row that goes on."""
        return bool(((level.carried[:, 0] < self.options.sure) | state.done).all())

    def _matchness(self, state: State, numbers: frozenset[int]) -> float:
        """Matchness: how often the model without a set of sub-layers finds the last units of the rows likeliest."""
        window = self.options.window
        place = state.known[:, None] - 1 - window + torch.arange(window + 1, device=state.known.device)
        units = take_nodes(state.history, place.clamp(min=0))  # rows that ended may be shorter
        chain = Draft.chain(units[:, 1:-1]).rooted(units[:, 0], torch.full_like(state.known, window))
        with rewound(state.cache, window):
            logits = self._own.verify(numbers, state, state.cache, chain, 0).logits
        assert logits is not None, "the target is discrete"
        found: Tensor = logits.argmax(-1) == units[:, 1:]
        return float(found[~state.done].float().mean())
