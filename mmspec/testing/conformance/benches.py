"""Where components are tried: a target, its prompts, what its distribution is; toys, and what authors give in an
`Example`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.drafters.shapes import Rerank
from mmspec.core.protocols import Drafter, Target
from mmspec.core.types import Draft, TargetOutput
from mmspec.core.warp import Prefix, Warp
from mmspec.testing.cases import GUIDANCE, grid_case, markov_case
from mmspec.testing.conformance.example import Example
from mmspec.testing.history import HistoryTarget
from mmspec.testing.toys.gaussian import GaussianTarget, RepeatLeft
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree

SEEN = 8
"""Largest vocabulary of which exact joints are computed."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A target with all that a trial needs.

    Attributes:
        name: What failures call it.
        target: The target.
        prompt: Inputs of a batch of rows, by their numbers; equal numbers are equal rows.
        warp: From scores to distributions, sampling at temperature 1.
        next_distribution: Probabilities `[vocab]` of the unit after those emitted in row 0; None where nobody knows
            them.
        again: From units `[batch, known]` and their padding to inputs; None where a prompt is not made of units.
        drafters: Drafters of every shape that the target verifies, for rules to be tried on.
        rows: Rows of a statistical trial, in one batch.
    """

    name: str
    target: Target
    prompt: Callable[[Sequence[int]], Any]
    warp: Warp = field(default_factory=Warp)
    next_distribution: Callable[[tuple[int, ...]], Tensor] | None = None
    again: Callable[[Tensor, Tensor], Any] | None = None
    drafters: Mapping[str, Callable[[], Drafter]] = field(default_factory=dict)
    rows: int = 50_000

    @property
    def discrete(self) -> bool:
        """Whether units are ids."""
        return "discrete" in self.target.offers

    @property
    def greedy(self) -> Warp:
        """The same warp at temperature 0."""
        return Warp(self.warp.processors, sample=False, guidance=self.warp.guidance)


@cache
def markov() -> Bench:
    """Order-2 text over three units."""
    case = markov_case()
    reranked: dict[str, Callable[[], Drafter]] = {"reranked": case.drafters["reranked"]}
    shapes = ("chain", "chain sparse", "chain bad", "tree with", "tree without", "tree top")
    return Bench(
        "markov",
        case.target,
        lambda rows: torch.tensor([[r % 3, (r + 1) % 3] for r in rows]),
        next_distribution=case.next_distribution,
        again=lambda units, pads: units,
        drafters={name: case.drafters[name] for name in shapes} | reranked,
    )


@cache
def history() -> Bench:
    """A text whose distribution depends on all of it, behind prompts of several lengths."""
    target = HistoryTarget.random(3, seed=3)

    def prompt(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        units = torch.tensor([[(r + i * i) % 3 for i in range(6)] for r in rows])
        return units, torch.tensor([4 - r % 4 for r in rows])

    units, pads = prompt([0])
    small = target.near(4)
    drafters: dict[str, Callable[[], Drafter]] = {
        "chain model": lambda: DraftModel(small),
        "reranked model": lambda: DraftModel(small, Rerank(frontier=2, children=3, nodes=6)),
        "window random": lambda: Jacobi(RandomUnit(3)),
    }
    return Bench(
        "history",
        target,
        prompt,
        next_distribution=target.next_distribution(units[0, int(pads) :].tolist()),
        again=lambda units, pads: (units, pads),
        drafters=drafters,
    )


@cache
def grid() -> Bench:
    """Codes of an image two wide, under guidance; no prompt."""
    case = grid_case()
    shapes = ("window random", "window left", "chain model", "tree branching", "tree beam")
    drafters = {name: case.drafters[name] for name in shapes}
    classes = 2  # row 0 has the class whose distribution the case knows
    return Bench(
        "grid",
        case.target,
        lambda rows: torch.tensor([(r + 1) % classes for r in rows]),
        warp=Warp(guidance=GUIDANCE),
        next_distribution=case.next_distribution,
        drafters=drafters,
    )


@cache
def gaussian() -> Bench:
    """Continuous tokens, three wide."""
    target = GaussianTarget.random(width=3, dim=1, seed=0)
    drafters: dict[str, Callable[[], Drafter]] = {"window left": lambda: Jacobi(RepeatLeft(target.sigma))}
    return Bench("gaussian", target, lambda rows: len(rows), drafters=drafters, rows=20_000)


def toys() -> list[Bench]:
    """All of them."""
    return [markov(), history(), grid(), gaussian()]


@cache
def bench_of(name: str, example: Example) -> Bench:
    """The bench that an author's example describes."""
    assert example.target is not None and example.prompt is not None
    target, vocab = example.target, example.target.vocab
    warp = Warp(guidance=example.guidance, forced=getattr(target, "forced", None))
    bench = Bench(name, target, example.prompt, warp, again=example.again, rows=6_000)
    if vocab is None or vocab > SEEN:
        return bench
    next_distribution = cache(
        partial(_distribution_by_prefill if example.again is not None else _distribution_by_passes, bench)
    )
    return replace(bench, next_distribution=next_distribution, drafters=_tabled(vocab, "tree" in target.offers))


def _tabled(vocab: int, trees: bool) -> dict[str, Callable[[], Drafter]]:
    """Drafters that fit every target of so many units: from a table that knows nothing of it."""
    table = MarkovTarget.random(vocab, seed=1).table
    drafters: dict[str, Callable[[], Drafter]] = {"chain": lambda: MarkovChain(table)}
    return drafters | ({"tree without": lambda: MarkovTree(table)} if trees else {})


def scores_after(bench: Bench, units: Tensor, pads: Tensor) -> TargetOutput:
    """The target's scores after known units `[batch, known]`, by a fresh prefill."""
    assert bench.again is not None
    return bench.target.start(bench.again(units, pads), 4, 4).output


def _distribution_by_prefill(bench: Bench, emitted: tuple[int, ...]) -> Tensor:
    """The next unit's distribution `[vocab]` in row 0 after units were emitted: by a prefill of all there is."""
    started = bench.target.start(bench.prompt([0]), 4, 4)
    units = torch.cat([started.prompt, torch.tensor([emitted], dtype=torch.int64)], 1)
    return _distribution(bench, scores_after(bench, units, started.pads), units, len(emitted))


def _distribution_by_passes(bench: Bench, emitted: tuple[int, ...]) -> Tensor:
    """The same of a target whose prompts are not made of units: one unit a pass."""
    started = bench.target.start(bench.prompt([0]), len(emitted) + 1, 1)
    output, units = started.output, torch.cat([started.prompt, torch.tensor([emitted], dtype=torch.int64)], 1)
    one = torch.ones(1, dtype=torch.int64)
    for unit in units[0, started.prompt.shape[1] :]:
        output = bench.target.verify(started.cache, Draft.alone(unit[None]))
        bench.target.commit(started.cache, torch.full((1, 0), -1), one)
    return _distribution(bench, output, units, len(emitted))


def _distribution(bench: Bench, output: TargetOutput, units: Tensor, emitted: int) -> Tensor:
    draft = Draft.alone(torch.zeros(1, dtype=torch.int64))
    distribution: Any = bench.warp(output, draft, Prefix(units, [units.shape[1]], torch.tensor([emitted]))).distribution
    probs: Tensor = distribution.on(None)[0, 0]
    return probs
