"""Where components are tried: a target with its prompts and exact distribution, a toy or from an author's `Example`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Conditioning, Forcing
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.drafters.shapes import Beam, Branching, Rerank
from mmspec.core.history_processors import Prefix
from mmspec.core.protocols import Drafter, Target
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.core.warp import Warp
from mmspec.testing.conformance.example import Example
from mmspec.testing.toys.gaussian import GaussianTarget, RepeatLeft
from mmspec.testing.toys.grid import GridTarget
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree

VOCAB = 3
"""Unit ids of the discrete toys."""
GUIDANCE = 2.0
SEEN = 8
"""Largest vocabulary of which exact joints are computed."""

Drafters = Mapping[str, Callable[[], Drafter]]


@dataclass(frozen=True, eq=False)
class Bench:
    """A target with all that a trial needs."""

    name: str  # the name in messages
    target: Target
    prompt: Callable[[Sequence[int]], Any]  # inputs of a batch of rows, given as numbers; equal numbers are equal rows
    warp: Warp = field(default_factory=Warp)  # from scores to distributions, sampling at temperature 1
    # Probabilities `[vocab]` of the unit after those emitted in row 0; None if they are not known
    next_distribution: Callable[[tuple[int, ...]], Tensor] | None = None
    # Inputs from units `[batch, known]` and their padding; None where a prompt is not made of units
    again: Callable[[Tensor, Tensor], Any] | None = None
    # Drafters for rules to be tried on; each name begins with the shape of the draft
    drafters: Drafters = field(default_factory=dict)
    rows: int = 50_000  # rows of a statistical trial, in one batch

    @property
    def discrete(self) -> bool:
        """True if units are ids."""
        return "discrete" in self.target.offers

    @property
    def greedy(self) -> Warp:
        """The same warp at temperature 0."""
        return Warp(self.warp.processors, sample=False, guidance=self.warp.guidance)


@cache
def markov() -> Bench:
    """Order-2 text over three units; drafters from a table close to the target's, and from its opposite."""
    target = MarkovTarget.random(VOCAB, seed=0)
    near, probs = (target.table + MarkovTarget.random(VOCAB, seed=1).table) / 2, target.table.softmax(-1)

    def next_distribution(units: tuple[int, ...]) -> Tensor:
        before, at = (0, 1, *units)[-2:]
        return probs[before, at]

    return Bench(
        "markov",
        target,
        lambda rows: (torch.tensor([*rows])[:, None] + torch.arange(2)) % 3,
        next_distribution=next_distribution,
        again=lambda units, pads: units,
        drafters={
            "chain": lambda: MarkovChain(near),
            "chain sparse": lambda: MarkovChain(near, top=2),
            "chain bad": lambda: MarkovChain(-2 * target.table),
            "tree with": lambda: MarkovTree(near, siblings="with"),
            "tree without": lambda: MarkovTree(near, siblings="without"),
            "tree top": lambda: MarkovTree(near, siblings="top"),
            "reranked": modelled(MarkovTarget(near))["reranked"],
        },
    )


@cache
def history() -> Bench:
    """A text whose distribution depends on all of it, behind prompts of several lengths."""
    target = HistoryTarget.random(VOCAB, seed=3)

    def prompt(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        row = torch.tensor([*rows])
        return (row[:, None] + torch.arange(6) ** 2) % 3, 4 - row % 4

    units, pads = prompt([0])
    models = modelled(target.near(4))
    return Bench(
        "history",
        target,
        prompt,
        next_distribution=target.next_distribution(units[0, int(pads) :].tolist()),
        again=lambda units, pads: (units, pads),
        drafters={
            "chain model": models["chain model"],
            "reranked model": models["reranked"],
            "window random": lambda: Jacobi(RandomUnit(VOCAB)),
        },
    )


@cache
def grid() -> Bench:
    """Codes of a picture two wide, under guidance; the prompt is a class."""
    target, other = (GridTarget.random(2, VOCAB, seed=seed) for seed in (3, 1))
    models = modelled(GridTarget(2, (target.table + other.table) / 2))
    windows: Drafters = {
        "window random": lambda: Jacobi(RandomUnit(VOCAB)),
        "window left": lambda: Jacobi(LeftUnit()),
    }
    return Bench(
        "grid",
        target,
        lambda rows: (torch.tensor([*rows]) + 1) % 2,
        warp=Warp(guidance=GUIDANCE),
        next_distribution=lambda units: target.next_logits(1, units, GUIDANCE).softmax(-1),
        drafters={**windows, **{name: models[name] for name in ("chain model", "tree branching", "tree beam")}},
    )


@cache
def gaussian() -> Bench:
    """Continuous tokens, three wide."""
    target = GaussianTarget.random(width=3, dim=1, seed=0)
    drafters: Drafters = {"window left": lambda: Jacobi(RepeatLeft(target.sigma))}
    return Bench("gaussian", target, lambda rows: len(rows), drafters=drafters, rows=20_000)


def toys() -> list[Bench]:
    """The kit's own benches."""
    return [markov(), history(), grid(), gaussian()]


def modelled(small: Target) -> Drafters:
    """Drafters that draw from a smaller target, in every shape."""
    return {
        "chain model": lambda: DraftModel(small),
        "tree branching": lambda: DraftModel(small, Branching((3, 2, 1))),
        "tree beam": lambda: DraftModel(small, Beam(3)),
        "reranked": lambda: DraftModel(small, Rerank(frontier=2, children=3, nodes=6)),
    }


@cache
def bench_of(name: str, example: Example) -> Bench:
    """The bench that an author's example describes."""
    target = example.target
    assert target is not None and example.prompt is not None
    warp = Warp(guidance=example.guidance, forced=target.forced if isinstance(target, Forcing) else None)
    bench = Bench(name, target, example.prompt, warp, again=example.again, rows=6_000)
    if target.vocab is None or target.vocab > SEEN:
        return bench
    table = MarkovTarget.random(target.vocab, seed=1).table  # unlike the target's
    drafters: dict[str, Callable[[], Drafter]] = {"chain": lambda: MarkovChain(table)}
    if "tree" in target.offers:
        drafters["tree without"] = lambda: MarkovTree(table)
    return replace(bench, next_distribution=cache(partial(_distribution, bench)), drafters=drafters)


def conditioned(bench: Bench, drafter: Drafter | None) -> Bench:
    """A bench with the target that a drafter puts in the place of the bench's own, if it does."""
    if not isinstance(drafter, Conditioning):
        return bench
    other = replace(bench, target=drafter.wrap(bench.target))
    known = bench.next_distribution is not None
    return replace(other, next_distribution=cache(partial(_distribution, other)) if known else None)


def _distribution(bench: Bench, emitted: tuple[int, ...]) -> Tensor:
    """The next unit's distribution `[vocab]` in row 0 after units were emitted."""
    started = bench.target.start(bench.prompt([0]), len(emitted) + 4, 4)
    new = torch.tensor(emitted, dtype=torch.int64)
    units = torch.cat([started.prompt, new[None]], 1)
    if bench.again is None:
        output = scores_by_passes(bench, started, new)
    else:
        output = bench.target.start(bench.again(units, started.pads), 4, 4).output
    draft = Draft.alone(torch.zeros(1, dtype=torch.int64))
    prefix = Prefix(units, [units.shape[1]], torch.tensor([len(emitted)]))
    distribution: Any = bench.warp(output, draft, prefix).distribution
    return distribution.on(None)[0, 0]


def scores_by_passes(bench: Bench, started: Prefill, units: Tensor) -> TargetOutput:
    """The target's scores after a prompt of one row and `units [count, *unit]`, by passes of one unit."""
    output = started.output
    for unit in units:
        output = bench.target.verify(started.cache, Draft.alone(unit[None]))
        bench.target.commit(started.cache, torch.full((1, 0), -1), torch.ones(1, dtype=torch.int64))
    return output
