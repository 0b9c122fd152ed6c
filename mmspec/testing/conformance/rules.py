"""What a rule promises whatever its exactness, and what every exact rule promises."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules import Rule
from mmspec.core.warp import Warp
from mmspec.testing.conformance.benches import markov
from mmspec.testing.conformance.play import K, differing, plain, refuse_differing
from mmspec.testing.conformance.promise import Broken, Untried, is_exact, promise
from mmspec.testing.conformance.rule_pairs import LIMIT, ROWS, pairs
from mmspec.testing.conformance.subject import Subject, remembered
from mmspec.testing.conformance.watch import Log
from mmspec.testing.conformance.watch_rule import WatchedRule
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree


@remembered
def log(subject: Subject) -> Log:
    """The record of runs with every drafter, in which some units have probability 0."""
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
    return seen


@promise("rule")
def verdicts_are_paths(subject: Subject) -> str:
    """A verdict is a path of valid nodes from the root, its length, and one more unit, in the shapes of `Verdict`."""
    return log(subject).unbroken("verdicts-are-paths", f"{log(subject).count['verdicts']:,} verdicts")


@promise("rule")
def draft_and_scores_stay(subject: Subject) -> str:
    """`accept` is pure: draft and scores are the same afterwards."""
    return log(subject).unbroken("draft-and-scores-stay", f"0 changes in {log(subject).count['verdicts']:,} verdicts")


@promise("rule")
def global_generators_stay(subject: Subject) -> str:
    """All chance comes from the round's noise: torch's, numpy's and Python's generators are left alone."""
    return log(subject).unbroken("global-generators-stay", f"0 draws in {log(subject).count['verdicts']:,} verdicts")


@promise("rule")
def same_seed_same_output(subject: Subject) -> str:
    """The same seed gives the same output again."""
    rows = log(subject).count["same-seed-same-output"]
    return log(subject).unbroken("same-seed-same-output", f"0 of {rows} rows differ")


@promise("rule")
def rows_are_independent(subject: Subject) -> str:
    """A row of a batch is what it is alone."""
    rows = log(subject).count["rows-are-independent"]
    return log(subject).unbroken("rows-are-independent", f"0 of {rows} rows differ")


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
