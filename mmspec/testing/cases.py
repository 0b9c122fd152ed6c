"""The discrete toys with all that fits them, for tests that hold for every target, drafter and rule."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import EarlierUnit, LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.drafters.shapes import Beam, Branching, Rerank
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.warp import Warp
from mmspec.testing.toys.grid import GridTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree
from mmspec.testing.toys.recurrence import RecurrenceTarget

VOCAB = 3
GUIDANCE = 2.0

RULES: dict[str, tuple[type[Rule], ...]] = {
    "chain": (Match, Rejection, Block, RecursiveRejection),
    "tree": (Match, RecursiveRejection),
    "reranked": (Match,),
    "window": (Match, Rejection),
}
"""Rules that take each shape of draft; every other pair must be refused."""


@dataclass(frozen=True)
class Case:
    """A toy.

    Attributes:
        target: The target.
        prompt: Inputs for that many rows, all alike.
        next_distribution: Probabilities `[vocab]` of the unit after those emitted, at temperature 1.
        drafters: By name; names open with the shape of the draft.
        warp: What `next_distribution` assumes.
    """

    target: Target
    prompt: Callable[[int], Any]
    next_distribution: Callable[[tuple[int, ...]], Tensor]
    drafters: dict[str, Callable[[], Drafter]]
    warp: Warp

    def pairs(self) -> Iterator[tuple[str, Callable[[], Drafter], type[Rule]]]:
        """Every drafter with every rule that takes it."""
        for name, make in self.drafters.items():
            for rule in RULES[name.split()[0]]:
                yield name, make, rule


def markov_case() -> Case:
    """Order-2 text; drafters from a table close to the target's, and from its opposite."""
    target = MarkovTarget.random(VOCAB, seed=0)
    near = (target.table + MarkovTarget.random(VOCAB, seed=1).table) / 2
    prompt = torch.tensor([[0, 1]])
    probs = target.table.softmax(-1)

    def next_distribution(units: tuple[int, ...]) -> Tensor:
        before, at = (0, 1, *units)[-2:]
        return probs[before, at]

    drafters = _tabled(near, -2 * target.table) | _modelled(MarkovTarget(near))
    return Case(target, lambda rows: prompt.expand(rows, 2), next_distribution, drafters, Warp())


def recurrence_case() -> Case:
    """A two-layer recurrence; the drafters' tables know nothing of it, smaller models are recurrences, too."""
    target = RecurrenceTarget.random(VOCAB, seed=4)
    table = MarkovTarget.random(VOCAB, seed=1).table
    prompt = torch.tensor([[2, 0, 1]])

    def next_distribution(units: tuple[int, ...]) -> Tensor:
        known = torch.cat([prompt, torch.tensor([units]).long()], 1)
        logits = target.start(known, 1, 1).output.logits
        assert logits is not None
        return logits[0, 0].softmax(-1)

    drafters = _tabled(table, -2 * table) | _modelled(target.near(5))
    return Case(target, lambda rows: prompt.expand(rows, 3), next_distribution, drafters, Warp())


def grid_case() -> Case:
    """Codes two wide, under guidance; Jacobi windows, and a smaller model."""
    target, other = GridTarget.random(2, VOCAB, seed=3), GridTarget.random(2, VOCAB, seed=1)
    small = GridTarget(2, (target.table + other.table) / 2)
    bad = GridTarget(2, -2 * target.table)
    windows: dict[str, Callable[[], Drafter]] = {
        "window random": lambda: Jacobi(RandomUnit(VOCAB)),
        "window left": lambda: Jacobi(LeftUnit()),
        "window above": lambda: Jacobi(EarlierUnit(2)),
        "window independent": lambda: Jacobi(EarlierUnit(2), independent=True),
    }
    drafters = windows | _modelled(small) | {"chain model bad": lambda: DraftModel(bad)}
    return Case(
        target,
        lambda rows: torch.ones(rows, dtype=torch.int64),
        lambda units: target.next_logits(1, units, GUIDANCE).softmax(-1),
        drafters,
        Warp(guidance=GUIDANCE),
    )


def _modelled(small: Target) -> dict[str, Callable[[], Drafter]]:
    return {
        "chain model": lambda: DraftModel(small),
        "tree branching": lambda: DraftModel(small, Branching((3, 2, 1))),
        "tree beam": lambda: DraftModel(small, Beam(3)),
        "reranked": lambda: DraftModel(small, Rerank(frontier=2, children=3, nodes=6)),
    }


def _tabled(table: Tensor, bad: Tensor) -> dict[str, Callable[[], Drafter]]:
    return {
        "chain": lambda: MarkovChain(table),
        "chain sparse": lambda: MarkovChain(table, top=2),
        "chain bad": lambda: MarkovChain(bad),
        "tree with": lambda: MarkovTree(table, siblings="with"),
        "tree without": lambda: MarkovTree(table, siblings="without"),
        "tree top": lambda: MarkovTree(table, siblings="top"),
        "tree bad": lambda: MarkovTree(bad, branching=(2, 1)),
        "window random": lambda: Jacobi(RandomUnit(len(table))),
    }


CASES: dict[str, Callable[[], Case]] = {"markov": markov_case, "grid": grid_case, "recurrence": recurrence_case}
