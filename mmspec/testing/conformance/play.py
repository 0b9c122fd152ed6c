"""Decoding on a bench with a watched drafter, batch by batch; and the plain output that it is compared with."""

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
from mmspec.testing.conformance.promise import Broken
from mmspec.testing.conformance.subject import MOST, Trial
from mmspec.testing.conformance.watch import FAILED, Log, Watched

K = MOST
LIMIT = 18
ROUNDING = 1e-3
"""Tolerance for continuous units: a batch rounds products differently, and rows feed on what they drew."""

Batches = Sequence[Sequence[int]]
Rounds = list[tuple[int, Draft]]


class Alternating:
    """A policy of 0, 4, 1, 2, 0, … units: empty rounds, and drafts of every length."""

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
    """The output of some batches."""

    batches: Batches  # the numbers of their rows
    log: Log  # what the drafter did wrong
    units: list[Tensor] = field(default_factory=list)  # the units of every row of every batch
    rounds: list[Rounds] = field(default_factory=list)  # for every batch: the budget and the draft of every round
    emitted: int = 0  # units after the first of each row
    passes: int = 0  # passes of the target after prefill, summed over rows

    @property
    def length(self) -> float:
        """Acceptance length."""
        return self.emitted / self.passes if self.passes else 0.0

    @property
    def drafts(self) -> int:
        return sum(map(len, self.rounds))

    def by_row(self) -> dict[int, list[tuple[int, Any]]]:
        """For every row: the budget of every round, and the row's part of the draft."""
        return {
            row: [(budget, _row(draft, place)) for budget, draft in rounds]
            for rows, rounds in zip(self.batches, self.rounds, strict=True)
            for place, row in enumerate(rows)
        }


class Player:
    """A decoder with a new, watched drafter; without a policy, the budget of all rounds is `K`."""

    def __init__(self, trial: Trial, rule: Rule, policy: Policy | None = None) -> None:
        self.bench = trial.bench
        drafter = trial.drafter()
        self.drafter = None if drafter is None else Watched(drafter)
        self.decoder = Decoder(self.bench.target, self.drafter, rule, k=K, policy=policy)

    def play(self, batches: Batches, *, warp: Warp | None = None, ends: int | None = None) -> Played:
        """Decode batches; each row has a seed of its own, the same in every batch."""
        played = Played(batches, Log())
        for rows in batches:
            if self.drafter is not None:
                self.drafter.log, self.drafter.rounds = played.log, []
            output = self.decoder.generate(
                self.bench.prompt(rows), LIMIT, seed=seeds(rows), warp=warp or self.bench.warp, ends=ends
            )
            played.units += [row.clone() for row in output.units]
            played.rounds.append([] if self.drafter is None else self.drafter.rounds)
            played.emitted += output.report.emitted - output.report.rows
            played.passes += output.report.row_rounds
        return played


def seeds(rows: Sequence[int]) -> list[int]:
    return [1000 + row for row in rows]


def plain(
    bench: Bench, batches: Batches, *, limit: int = LIMIT, sample: bool = True, ends: int | None = None
) -> list[Tensor]:
    """Plain decoding of all rows; cached."""
    return [row for rows in batches for row in _plain(bench, tuple(rows), limit, sample, ends)]


@cache
def _plain(bench: Bench, rows: tuple[int, ...], limit: int, sample: bool, ends: int | None) -> list[Tensor]:
    warp = bench.warp if sample else bench.greedy
    output = Decoder(bench.target).generate(bench.prompt(rows), limit, seed=seeds(rows), warp=warp, ends=ends)
    return [row.clone() for row in output.units]


def differing(a: Sequence[Tensor], b: Sequence[Tensor]) -> int:
    """The number of rows that are not equal; continuous rows are compared up to rounding."""
    return sum(not _equal(x, y) for x, y in zip(a, b, strict=True))


def refuse_differing(a: Sequence[Tensor], b: Sequence[Tensor], reason: str) -> int:
    """Compare rows. Returns how many there are."""
    wrong = differing(a, b)
    if wrong:
        raise Broken(reason, f"{wrong} of {len(a)} rows differ")
    return len(a)


def _equal(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a, b, rtol=ROUNDING, atol=ROUNDING)


def unlike(a: Played, b: Played) -> tuple[int, int]:
    """Drafts of the same row, round and budget: how many differ, and how many there are."""
    ours, theirs = a.by_row(), b.by_row()
    pairs = [pair for row in ours.keys() & theirs.keys() for pair in _same_budget(ours[row], theirs[row])]
    return sum(not _same_nodes(x, y) for x, y in pairs), len(pairs)


def _same_nodes(x: Any, y: Any) -> bool:
    if [parent for parent, _ in x] != [parent for parent, _ in y]:
        return False
    return all(_equal(torch.tensor(a), torch.tensor(b)) for (_, a), (_, b) in zip(x, y, strict=True))


def _same_budget(a: list[tuple[int, Any]], b: list[tuple[int, Any]]) -> Iterator[tuple[Any, Any]]:
    for (budget, x), (other, y) in zip(a, b, strict=False):  # a row alone may have more rounds than in its batch
        if budget == other != FAILED:
            yield x, y


def _row(draft: Draft, place: int) -> Any:
    """The valid nodes of one row of a draft: parent (the root is 0) and unit."""
    parent = draft.index.parent[:, 1:].expand(len(draft.units), -1)
    nodes = zip(parent[place].tolist(), draft.units[place].tolist(), draft.valid[place].tolist(), strict=True)
    return [(above, unit) for above, unit, valid in nodes if valid]
