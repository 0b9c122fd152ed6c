"""Decoding on a bench, watched, batch by batch; and the plain text that it is compared with, remembered."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.policies import Policy
from mmspec.core.rules import Rule
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.testing.conformance.benches import Bench
from mmspec.testing.conformance.subject import Trial
from mmspec.testing.conformance.watch import FAILED, Log, Watched

K = 4
LIMIT = 18
ROUNDING = 1e-3
"""Of continuous units: in another batch a model's products are rounded otherwise, and rows feed on what they drew."""

Batches = Sequence[Sequence[int]]
Rounds = list[tuple[int, Draft]]


class Alternating:
    """0, 4, 1, 2, 0, … units: empty rounds, and drafts of every length."""

    def __init__(self) -> None:
        self._turn = itertools.cycle((0, K, 1, 2))

    def budget(self) -> int:
        return next(self._turn)

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        pass


@dataclass
class Played:
    """What came out of some batches.

    Attributes:
        batches: Their rows.
        log: What the drafter did wrong.
        units: Of every row of every batch.
        rounds: Of every batch: what was asked for and drafted.
        emitted: Units after the first of each row.
        passes: Passes of the target after prefill, a row each.
    """

    batches: Batches
    log: Log
    units: list[Tensor] = field(default_factory=list)
    rounds: list[Rounds] = field(default_factory=list)
    emitted: int = 0
    passes: int = 0

    @property
    def length(self) -> float:
        """Acceptance length."""
        return self.emitted / self.passes if self.passes else 0.0

    @property
    def drafts(self) -> int:
        """How many drafts there were."""
        return sum(map(len, self.rounds))

    def by_row(self) -> dict[int, Rounds]:
        """Rounds of every row, its own place in each draft put first."""
        return {
            row: [(budget, _row(draft, place)) for budget, draft in rounds]
            for rows, rounds in zip(self.batches, self.rounds, strict=True)
            for place, row in enumerate(rows)
        }


class Player:
    """A decoder with a new, watched drafter.

    Args:
        trial: Where and with what.
        rule: The rule.
        policy: Budgets; default: always `K`.
    """

    def __init__(self, trial: Trial, rule: Rule, policy: Policy | None = None) -> None:
        self.bench = trial.bench
        made = trial.drafter()
        self.drafter = None if made is None else Watched(made)
        self.decoder = Decoder(self.bench.target, self.drafter, rule, k=K, policy=policy)

    def play(
        self, batches: Batches, *, limit: int = LIMIT, warp: Warp | None = None, ends: int | None = None
    ) -> Played:
        """Decode batches; a row's seed is its own, so that it is the same in every batch."""
        played = Played(batches, Log())
        for rows in batches:
            if self.drafter is not None:
                self.drafter.log, self.drafter.rounds = played.log, []
            output = self.decoder.generate(
                self.bench.prompt(rows), limit, seed=seeds(rows), warp=warp or self.bench.warp, ends=ends
            )
            played.units += [row.clone() for row in output.units]
            played.rounds.append([] if self.drafter is None else self.drafter.rounds)
            played.emitted += output.report.emitted - output.report.rows
            played.passes += output.report.row_rounds
        return played


def seeds(rows: Sequence[int]) -> list[int]:
    """One a row."""
    return [1000 + row for row in rows]


def plain(
    bench: Bench, batches: Batches, *, limit: int = LIMIT, sample: bool = True, ends: int | None = None
) -> list[Tensor]:
    """The plain text of all rows; remembered."""
    return [row for rows in batches for row in _plain(bench, tuple(rows), limit, sample, ends)]


def differing(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> int:
    """How many rows are not equal; continuous ones, up to rounding."""
    assert len(ours) == len(theirs)
    return sum(not _equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _equal(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a, b, rtol=ROUNDING, atol=ROUNDING)


def unlike(a: Played, b: Played) -> tuple[int, int]:
    """Of the drafts that a row got in both, in the same round for the same budget: how many differ, and how many."""
    ours, theirs = a.by_row(), b.by_row()
    pairs = [pair for row in ours.keys() & theirs.keys() for pair in _same_budget(ours[row], theirs[row])]
    return sum(not _same_nodes(x, y) for x, y in pairs), len(pairs)


def _same_nodes(x: Any, y: Any) -> bool:
    if [above for above, _ in x] != [above for above, _ in y]:
        return False
    return all(_equal(torch.tensor(a), torch.tensor(b)) for (_, a), (_, b) in zip(x, y, strict=True))


def _same_budget(a: Rounds, b: Rounds) -> Iterator[tuple[Any, Any]]:
    for (mine, ours), (other, theirs) in zip(a, b, strict=False):
        if mine == other != FAILED:
            yield ours, theirs


def _row(draft: Draft, place: int) -> Any:
    """The valid nodes of a row of a draft: parent (the root is 0) and unit."""
    parent = draft.index.parent[:, 1:].expand(len(draft.units), -1)
    nodes = zip(parent[place].tolist(), draft.units[place].tolist(), draft.valid[place].tolist(), strict=False)
    return [(above, unit) for above, unit, valid in nodes if valid]


@cache
def _plain(bench: Bench, rows: tuple[int, ...], limit: int, sample: bool, ends: int | None) -> list[Tensor]:
    warp = bench.warp if sample else bench.greedy
    output = Decoder(bench.target).generate(bench.prompt(rows), limit, seed=seeds(rows), warp=warp, ends=ends)
    return [row.clone() for row in output.units]
