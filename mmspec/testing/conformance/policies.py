"""The promises of a policy: it decides how many units are drafted, and changes nothing else."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.core.decoder import Decoder
from mmspec.core.policies import Policy
from mmspec.core.protocols import Drafter
from mmspec.core.rules import Match
from mmspec.core.types import Draft
from mmspec.testing.conformance.benches import Bench, toys
from mmspec.testing.conformance.play import LIMIT, K, plain, refuse_differing, seeds
from mmspec.testing.conformance.promise import promise, said
from mmspec.testing.conformance.subject import Subject, remembered
from mmspec.testing.conformance.watch import Log

ROWS = list(range(4))
SHAPES = ("chain", "tree top", "reranked")
"""The kit's drafters that policies are tried with, of those that a bench has."""


@dataclass
class WatchedPolicy:
    """A policy that passes every call on to another one, and records faults."""

    policy: Policy
    log: Log = field(default_factory=Log)

    def budget(self) -> int:
        self.log.count["budgets"] += 1
        try:
            units = operator.index(self.policy.budget())
        except Exception as error:
            return self._failed("budget", error, 0)
        self.log.reach("budget", units)
        if not 0 <= units <= K:
            self.log.wrong["budgets-fit"].append(f"a budget of {units} where k is {K}")
        return min(max(units, 0), K)

    def trim(self, draft: Draft) -> Draft:
        units, valid = draft.units.clone(), draft.valid.clone()
        try:
            trimmed = self.policy.trim(draft)
        except Exception as error:
            return self._failed("trim", error, draft)
        self.log.count["drafts"] += 1
        same = isinstance(trimmed, Draft) and torch.equal(trimmed.units, units) and torch.equal(draft.valid, valid)
        if not same or bool((trimmed.valid & ~valid).any()):
            self.log.wrong["trims-alone"].append("trim changed the draft; it returns one whose `valid` has fewer nodes")
            return draft
        return trimmed

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        try:
            self.policy.observe(depth, emitted, seconds)
        except Exception as error:
            self._failed("observe", error, None)

    def _failed(self, where: str, error: Exception, instead: Any) -> Any:
        self.log.wrong["budgets-fit"].append(f"{where}: {said(error)}")
        return instead


@remembered
def runs(subject: Subject) -> tuple[Log, list[tuple[Bench, list[torch.Tensor]]]]:
    """The record of all runs, and the units of every one."""
    log, found = Log(), []
    for bench, make in _drafters():
        watched = WatchedPolicy(subject.instance(subject.examples[0]), log)
        decoder = Decoder(bench.target, make(), Match(), k=K, policy=watched)
        for _ in range(2):  # a policy may remember the first call
            found.append((bench, list(decoder.generate(bench.prompt(ROWS), LIMIT, seed=seeds(ROWS)).units)))
    return log, found


def _drafters() -> Iterator[tuple[Bench, Callable[[], Drafter]]]:
    for bench in toys():
        for shape in SHAPES if bench.discrete else ():
            if shape in bench.drafters:
                yield bench, bench.drafters[shape]


@promise("policy")
def budgets_fit(subject: Subject) -> str:
    """A budget is 0 to k units, and neither budget, trim nor observe raises."""
    log, _ = runs(subject)
    return log.unbroken("budgets-fit", f"{log.count['budgets']} budgets, at most {log.most['budget']:.0f} of k = {K}")


@promise("policy")
def trims_alone(subject: Subject) -> str:
    """A trimmed draft is the draft, perhaps with fewer valid nodes."""
    log, _ = runs(subject)
    return log.unbroken("trims-alone", f"{log.count['drafts']} drafts")


@promise("policy")
def decides_lengths_alone(subject: Subject) -> str:
    """Under `match` the output is the plain one, whatever is drafted."""
    _, found = runs(subject)
    rows = 0
    for bench, units in found:
        rows += refuse_differing(units, plain(bench, [ROWS]), f"on {bench.name}, rows are not the plain ones")
    return f"0 of {rows} rows differ"
