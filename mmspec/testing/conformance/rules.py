"""What a rule promises whatever its exactness, and what every exact rule promises."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.fit import refuse_misfits
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules import Rule
from mmspec.core.warp import Warp
from mmspec.testing.conformance.benches import Bench, markov, toys
from mmspec.testing.conformance.play import K, differing, plain, refuse_differing, seeds
from mmspec.testing.conformance.promise import Broken, Untried, is_exact, promise
from mmspec.testing.conformance.subject import Subject, targets
from mmspec.testing.conformance.watch import Log
from mmspec.testing.conformance.watch_rule import WatchedRule
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree

ROWS = list(range(8))
LIMIT = 12


@dataclass(frozen=True)
class Pair:
    """A drafter that the rule takes, on a bench.

    Attributes:
        bench: The bench.
        shape: The drafter's name, which begins with the shape of its drafts.
        drafter: Makes a new drafter.
        rows: Rows of a statistical trial.
    """

    bench: Bench
    shape: str
    drafter: Callable[[], Drafter]
    rows: int

    def decode(
        self,
        rule: Rule,
        rows: Sequence[int] = ROWS,
        *,
        limit: int = LIMIT,
        seed: int | None = None,
        warp: Warp | None = None,
    ) -> Tensor:
        """Units of every row: `[batch, limit, *unit]`.

        Args:
            rule: The rule.
            rows: The rows, as numbers.
            limit: Units of each row.
            seed: A seed of the call; default: one seed per row, the same in every batch.
            warp: Default: the bench's warp.

        Raises:
            Broken: The drafter fails, so that nothing is tried.
        """
        decoder = Decoder(self.bench.target, self.drafter(), rule, k=K)
        seed_or_seeds = seeds(rows) if seed is None else seed
        state = decoder.start(self.bench.prompt(rows), limit, seed=seed_or_seeds, warp=warp or self.bench.warp)
        while not state.finished:
            decoder.advance(state)
        if state.report.faults:
            raise Broken(f"with the drafter {self}, which fails: nothing is tried", f"{state.report.faults} rounds")
        return state.history[:, state.given : state.given + limit]

    def __str__(self) -> str:
        return f"{self.shape} on {self.bench.name}"


def pairs(subject: Subject) -> list[Pair]:
    """Every drafter of the benches that the rule takes; cached.

    Raises:
        Untried: There is none; says why.
    """
    if "pairs" not in subject.cache:
        subject.cache["pairs"] = _pairs(subject)
    found: list[Pair] = subject.cache["pairs"]
    return found


def _pairs(subject: Subject) -> list[Pair]:
    own = [bench for bench in subject.own_benches if bench.drafters]
    rule, refusals = subject.rule(), []
    for benches in (own or toys(), targets(subject.registry)):
        found = []
        for bench in benches:
            for shape, make in bench.drafters.items():
                try:
                    refuse_misfits(bench.target, make(), rule)
                except ValueError as error:
                    refusals.append(str(error))
                    continue
                found.append(Pair(bench, shape, make, subject.rows(bench)))
        if found:
            return found
    raise Untried(f"no drafter of the kit fits it: {refusals[0]}. Give its factory an `example`")


def log(subject: Subject) -> Log:
    """The record of runs with every drafter, in which some units have probability 0; cached."""
    if "log" not in subject.cache:
        seen = Log()
        for pair in pairs(subject):
            warp = pair.bench.warp
            if pair.bench.discrete:
                warp = replace(Warp.sampling(top_k=2), guidance=warp.guidance)
            rule = WatchedRule(subject.rule(), seen)
            units = pair.decode(rule, warp=warp)
            runs = {"same-seed-same-output": [pair.decode(rule, warp=warp)]}
            # The nodes of a reranked draft depend on the longest row of a batch: only `match` promises equal rows then.
            if "rerank" not in pair.drafter().needs or rule.exactness == "invariant":
                runs["rows-are-independent"] = [pair.decode(rule, [row], warp=warp) for row in ROWS[:3]]
            for check, batches in runs.items():
                other = [row for batch in batches for row in batch]
                wrong = differing(list(units)[: len(other)], other)
                seen.count[check] += len(other)
                if wrong:
                    seen.wrong[check].append(f"with the drafter {pair}, {wrong} of {len(other)} rows differ")
        subject.cache["log"] = seen
    cached: Log = subject.cache["log"]
    return cached


def unbroken(subject: Subject, check: str, number: str) -> str:
    """`number`.

    Raises:
        Broken: A fault is recorded under `check`.
    """
    wrong = log(subject).wrong[check]
    if wrong:
        raise Broken(wrong[0], f"{len(wrong)} times")
    return number


@promise("rule")
def verdicts_are_paths(subject: Subject) -> str:
    """A verdict is a path of valid nodes from the root, its length, and one more unit, in the shapes of `Verdict`."""
    return unbroken(subject, "verdicts-are-paths", f"{log(subject).count['verdicts']:,} verdicts")


@promise("rule")
def draft_and_scores_stay(subject: Subject) -> str:
    """`accept` is pure: draft and scores are the same afterwards."""
    return unbroken(subject, "draft-and-scores-stay", f"0 changes in {log(subject).count['verdicts']:,} verdicts")


@promise("rule")
def global_generators_stay(subject: Subject) -> str:
    """All chance comes from the round's noise: torch's, numpy's and Python's generators are left alone."""
    return unbroken(subject, "global-generators-stay", f"0 draws in {log(subject).count['verdicts']:,} verdicts")


@promise("rule")
def same_seed_same_output(subject: Subject) -> str:
    """The same seed gives the same output again."""
    return unbroken(subject, "same-seed-same-output", f"0 of {log(subject).count['same-seed-same-output']} rows differ")


@promise("rule")
def rows_are_independent(subject: Subject) -> str:
    """A row of a batch is what it is alone."""
    rows = log(subject).count["rows-are-independent"]
    return unbroken(subject, "rows-are-independent", f"0 of {rows} rows differ")


@promise("rule", when=is_exact)
def emits_nothing_impossible(subject: Subject) -> str:
    """A unit of probability 0 is never emitted, whatever was drafted."""
    count = log(subject).count
    number = f"{count['impossible']} in {count['verdicts']:,} verdicts"
    if count["impossible"]:
        raise Broken("it emits units whose probability is 0", number)
    return number


@promise("rule", when=is_exact)
def greedy_at_zero(subject: Subject) -> str:
    """Where the target's distribution is its likeliest unit, the output is greedy decoding."""
    rows = 0
    for pair in pairs(subject):
        if pair.bench.discrete:
            units = list(pair.decode(subject.rule(), warp=pair.bench.greedy))
            expected = plain(pair.bench, [ROWS], limit=LIMIT, sample=False)
            rows += refuse_differing(units, expected, f"not with the drafter {pair}")
    if not rows:
        raise Untried("its units are not discrete")
    return f"0 of {rows} rows differ"


@promise("rule", when=is_exact)
def equal_distributions_accept_all(subject: Subject) -> str:
    """A draft that was drawn from the target's own distribution is accepted to its end."""
    bench, rule = markov(), subject.rule()
    a_round = Decoder(bench.target).start(bench.prompt([0]), 2).round()
    if not _depends_on_q(rule) and not rule.draft_noise(a_round).shared:
        raise Untried("it neither looks at q nor shares its noise with the draft")
    count = _accepted(rule, bench.target, bench.target.table)  # type: ignore[attr-defined]
    number = f"{count['full']:,} of {count['drafted']:,} drafts"
    if count["full"] < count["drafted"]:
        raise Broken("some drafts from the distribution itself are refused", number)
    return number


@promise("rule", when=is_exact)
def disjoint_distributions_accept_none(subject: Subject) -> str:
    """A draft of units that the target never emits is refused at once."""
    target = MarkovTarget(markov().target.table.clone())  # type: ignore[attr-defined]
    target.table[..., 2] = -torch.inf
    count = _accepted(subject.rule(), target, torch.where(target.table.isinf(), 0.0, -torch.inf))
    number = f"{count['some']} of {count['drafted']:,} drafts"
    if count["some"]:
        raise Broken("some are accepted in part", number)
    return number


def _accepted(rule: Rule, target: Target, table: Tensor) -> Counter[str]:
    """Counts of a run on a Markov chain with drafts from a table.

    Raises:
        Untried: The rule takes neither chains nor trees.
    """
    seen = Log()
    for decoder in _decoders(target, [MarkovChain(table), MarkovTree(table, (1, 1, 1, 1))], WatchedRule(rule, seen)):
        decoder.generate(torch.tensor([[0, 1]]).expand(500, 2), LIMIT, seed=3)
        return seen.count
    raise Untried("it takes neither chains nor trees of a Markov chain")


def _depends_on_q(rule: Rule) -> bool:
    """Whether a verdict depends on the distribution that a draft reports."""
    bench = markov()
    for decoder in _decoders(bench.target, [bench.drafters[shape]() for shape in ("chain", "tree without")], rule):
        state = decoder.start(bench.prompt([0] * 200), LIMIT, seed=1)
        pending = decoder.speculate(state)
        drafts = pending.draft, replace(pending.draft, distribution=None)
        lengths = [rule.accept(draft, pending.scores, state.round()).length for draft in drafts]
        return not torch.equal(*lengths)
    return False


def _decoders(target: Target, drafters: Sequence[Drafter], rule: Any) -> Iterator[Decoder]:
    """Decoders with those of the drafters that the rule takes."""
    for drafter in drafters:
        try:
            yield Decoder(target, drafter, rule, k=K)
        except ValueError:
            continue
