"""The discrete toys with all that fits them, for tests that hold for every target, drafter and rule."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import EarlierUnit, RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.warp import Warp
from mmspec.testing.conformance.benches import GUIDANCE, VOCAB, Bench, grid, markov, modelled
from mmspec.testing.toys.grid import GridTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree
from tests.support.toys.recurrence import RecurrenceTarget

__all__ = ["CASES", "GUIDANCE", "RULES", "VOCAB", "Case", "grid_case", "markov_case", "recurrence_case"]

RULES: dict[str, tuple[type[Rule], ...]] = {
    "chain": (Match, Rejection, Block, RecursiveRejection),
    "tree": (Match, RecursiveRejection),
    "reranked": (Match,),
    "window": (Match, Rejection),
}
"""Rules that take each shape of draft; every other pair must be refused."""


@dataclass(frozen=True)
class Case:
    """A toy."""

    target: Target
    prompt: Callable[[int], Any]  # inputs for a number of rows, all alike
    # probabilities `[vocab]` of the unit after those emitted, at temperature 1
    next_distribution: Callable[[tuple[int, ...]], Tensor]
    drafters: dict[str, Callable[[], Drafter]]  # drafters by name; each name begins with the shape of the draft
    warp: Warp  # the warp that `next_distribution` assumes

    def pairs(self, all: bool) -> Iterator[tuple[str, Callable[[], Drafter], type[Rule]]]:
        """Every drafter with one of the rules that take it, in turns; or with all of them."""
        for turn, (name, make) in enumerate(self.drafters.items()):
            rules = RULES[name.split()[0]]
            for rule in rules if all else [rules[turn % len(rules)]]:
                yield name, make, rule


def _case(bench: Bench, drafters: dict[str, Callable[[], Drafter]]) -> Case:
    """A bench of the conformance kit, its row 0 again and again, with more drafters."""
    assert bench.next_distribution is not None
    return Case(bench.target, lambda rows: bench.prompt([0] * rows), bench.next_distribution, drafters, bench.warp)


def markov_case() -> Case:
    """Order-2 text; drafters from a table close to the target's, and from its opposite."""
    target: Any = markov().target
    near = (target.table + MarkovTarget.random(VOCAB, seed=1).table) / 2
    return _case(markov(), _tabled(near, -2 * target.table) | dict(modelled(MarkovTarget(near))))


def grid_case() -> Case:
    """Codes two wide, under guidance; Jacobi windows, and a smaller model."""
    target: Any = grid().target
    small = GridTarget(2, (target.table + GridTarget.random(2, VOCAB, seed=1).table) / 2)
    bad = GridTarget(2, -2 * target.table)
    more: dict[str, Callable[[], Drafter]] = {
        "window above": lambda: Jacobi(EarlierUnit(2)),
        "window independent": lambda: Jacobi(EarlierUnit(2), independent=True),
        "chain model bad": lambda: DraftModel(bad),
    }
    return _case(grid(), dict(grid().drafters) | dict(modelled(small)) | more)


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

    drafters = _tabled(table, -2 * table) | dict(modelled(target.near(5)))
    return Case(target, lambda rows: prompt.expand(rows, 3), next_distribution, drafters, Warp())


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
