"""What a rule promises whatever its exactness, and what every exact rule does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.fit import refuse_misfits
from mmspec.core.protocols import Drafter
from mmspec.core.rules import Rule
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.registry import RuleSpec
from mmspec.testing.conformance.benches import Bench, markov, toys
from mmspec.testing.conformance.check import Broken, Untried, promise
from mmspec.testing.conformance.play import K, differing, plain, seeds
from mmspec.testing.conformance.subject import Subject, targets
from mmspec.testing.conformance.watch import Log
from mmspec.testing.conformance.watch_rule import WatchedRule
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree

ROWS = list(range(8))
LIMIT = 12


def exact(component: RuleSpec) -> bool:
    """Whether a rule says that it is exact."""
    return component.exactness in ("invariant", "lossless")


@dataclass(frozen=True)
class Pair:
    """A drafter that a rule takes, and where.

    Attributes:
        bench: Where.
        shape: What the draft is like.
        drafter: Makes one.
        rows: Rows of a statistical trial.
    """

    bench: Bench
    shape: str
    drafter: Callable[[], Drafter]
    rows: int

    def decode(self, rule: Rule, rows: Sequence[int] = ROWS, limit: int = LIMIT, **how: Any) -> Tensor:
        """Units of every row: `[batch, limit, *unit]`."""
        decoder = Decoder(self.bench.target, self.drafter(), rule, k=K)
        state = decoder.start(
            self.bench.prompt(rows), limit, seed=how.get("seed", seeds(rows)), warp=how.get("warp", self.bench.warp)
        )
        while not state.finished:
            decoder.advance(state)
        if state.report.faults:
            raise Broken(f"with the drafter {self}, which fails: nothing is tried", f"{state.report.faults} rounds")
        return state.history[:, state.prompt_length : state.prompt_length + limit]

    def __str__(self) -> str:
        return f"{self.shape} on {self.bench.name}"


def pairs(subject: Subject) -> list[Pair]:
    """Every drafter of the benches that the rule takes.

    Raises:
        Untried: None; says why.
    """
    if "pairs" not in subject.kept:
        subject.kept["pairs"] = _pairs(subject)
    found: list[Pair] = subject.kept["pairs"]
    return found


def _pairs(subject: Subject) -> list[Pair]:
    own = [bench for bench in subject.own_benches if bench.drafters]
    rule, refusals = subject.rule(subject.examples[0]), []
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
    raise Untried(f"no draft of the kit's fits it: {refusals[0]}. Give its factory an `example`")


def log(subject: Subject) -> Log:
    """What was seen in runs with every drafter, some units of the target's distribution being impossible. Kept."""
    if "log" not in subject.kept:
        seen = Log()
        for pair in pairs(subject):
            warp = pair.bench.warp
            if pair.bench.discrete:
                warp = replace(Warp.sampling(top_k=2), guidance=warp.guidance)
            rule = WatchedRule(subject.rule(subject.examples[0]), seen)
            units = pair.decode(rule, warp=warp)
            runs = {"same-seed-same-output": [pair.decode(rule, warp=warp)]}
            # Which nodes a reranked draft has depends on the longest room of a batch: under `match` that is the same.
            if "rerank" not in pair.drafter().needs or rule.exactness == "invariant":
                runs["rows-are-independent"] = [pair.decode(rule, [row], warp=warp) for row in ROWS[:3]]
            for check, batches in runs.items():
                other = [row for batch in batches for row in batch]
                wrong = differing(list(units)[: len(other)], other)
                seen.count[check] += len(other)
                if wrong:
                    seen.wrong[check].append(f"with the drafter {pair}, {wrong} of {len(other)} rows differ")
        subject.kept["log"] = seen
    kept: Log = subject.kept["log"]
    return kept


def unbroken(subject: Subject, check: str, number: str) -> str:
    """`number`, where nothing is written down under `check`."""
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
    """`accept` is pure: draft and scores are afterwards what they were before."""
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


@promise("rule", when=exact)
def emits_nothing_impossible(subject: Subject) -> str:
    """A unit of probability 0 is never emitted, whatever was drafted."""
    count = log(subject).count
    number = f"{count['impossible']} in {count['verdicts']:,} verdicts"
    if count["impossible"]:
        raise Broken("it emits units whose probability is 0", number)
    return number


@promise("rule", when=exact)
def greedy_at_zero(subject: Subject) -> str:
    """Where the target's distribution is its likeliest unit, the output is greedy decoding."""
    rows = 0
    for pair in pairs(subject):
        if pair.bench.discrete:
            units = pair.decode(subject.rule(subject.examples[0]), warp=pair.bench.greedy)
            wrong = differing(list(units), plain(pair.bench, [ROWS], limit=LIMIT, sample=False))
            rows += len(units)
            if wrong:
                raise Broken(f"not with the drafter {pair}", f"{wrong} of {len(units)} rows differ")
    if not rows:
        raise Untried("its units are not discrete")
    return f"0 of {rows} rows differ"


@promise("rule", when=exact)
def equal_distributions_accept_all(subject: Subject) -> str:
    """A draft that was drawn from the target's own distribution is accepted to its end."""
    bench, rule = markov(), subject.rule(subject.examples[0])
    if not _takes_q(rule) and not rule.draft_noise(_any_round()).shared:
        raise Untried("it neither looks at q nor shares its noise with the draft")
    count = _accepted(subject, bench.target, lambda target: target.table)
    number = f"{count['full']:,} of {count['drafted']:,} drafts"
    if count["full"] < count["drafted"]:
        raise Broken("some drafts from the distribution itself are refused", number)
    return number


@promise("rule", when=exact)
def disjoint_distributions_accept_none(subject: Subject) -> str:
    """A draft of units that the target never says is refused at once."""
    target = MarkovTarget(markov().target.table.clone())  # type: ignore[attr-defined]
    target.table[..., 2] = -torch.inf

    def never(target: MarkovTarget) -> Tensor:
        return torch.where(target.table.isinf(), 0.0, -torch.inf)

    count = _accepted(subject, target, never)
    number = f"{count['some']} of {count['drafted']:,} drafts"
    if count["some"]:
        raise Broken("some are accepted in part", number)
    return number


def _accepted(subject: Subject, target: Any, table: Callable[[Any], Tensor]) -> Any:
    """Counts of a run with drafts from a table, on a Markov chain."""
    rule = subject.rule(subject.examples[0])
    for drafter in (MarkovChain(table(target)), MarkovTree(table(target), (1, 1, 1, 1))):
        seen = Log()
        try:
            decoder = Decoder(target, drafter, WatchedRule(rule, seen), k=K)
        except ValueError:
            continue
        decoder.generate(torch.tensor([[0, 1]]).expand(500, 2), LIMIT, seed=3)
        return seen.count
    raise Untried("it takes neither chains nor trees of a Markov chain")


def _takes_q(rule: Rule) -> bool:
    """Whether a verdict depends on the distribution that a draft reports."""
    bench = markov()
    for shape in ("chain", "tree without"):
        try:
            decoder = Decoder(bench.target, bench.drafters[shape](), rule, k=K)
        except ValueError:
            continue
        state = decoder.start(bench.prompt([0] * 200), LIMIT, seed=1)
        pending = decoder.speculate(state)
        verdicts = [rule.accept(draft, pending.scores, state.round()) for draft in _both(pending.draft)]
        return not torch.equal(verdicts[0].length, verdicts[1].length)
    return False


def _both(draft: Draft) -> tuple[Draft, Draft]:
    return draft, replace(draft, distribution=None)


def _any_round() -> Any:
    return Decoder(markov().target).start(markov().prompt([0]), 2).round()
