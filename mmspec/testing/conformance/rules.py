"""The promises of a rule whatever its exactness, and what every exact rule promises."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, Distribution, take_nodes
from mmspec.core.noise import Round
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules import Rule
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.core.warp import Warp
from mmspec.testing.conformance.benches import markov
from mmspec.testing.conformance.play import K, differing, plain, refuse_differing
from mmspec.testing.conformance.promise import Broken, Untried, is_exact, promise
from mmspec.testing.conformance.rule_trials import LIMIT, ROWS, decode, rule_trials
from mmspec.testing.conformance.subject import Subject, remembered
from mmspec.testing.conformance.watch import Log, Snapshot
from mmspec.testing.lean import Around
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree


@remembered
def log(subject: Subject) -> Log:
    """The record of runs with every drafter, in which some units have probability 0."""
    seen = Log()
    for trial in rule_trials(subject):
        warp = trial.bench.warp
        if trial.bench.discrete:
            warp = replace(Warp.sampling(top_k=2), guidance=warp.guidance)
        rule = WatchedRule(subject.rule(), seen)
        units = decode(trial, rule, warp=warp)
        runs = {"same-seed-same-output": [decode(trial, rule, warp=warp)]}
        # The nodes of a reranked draft depend on the longest row of a batch: only `match` promises equal rows then.
        if "rerank" not in trial.drafter().needs or rule.exactness == "invariant":
            runs["rows-are-independent"] = [decode(trial, rule, [row], warp=warp) for row in ROWS[:3]]
        for check, batches in runs.items():
            other = [row for batch in batches for row in batch]
            wrong = differing(list(units)[: len(other)], other)
            seen.count[check] += len(other)
            if wrong:
                seen.wrong[check].append(f"with the drafter {trial}, {wrong} of {len(other)} rows differ")
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
    for trial in rule_trials(subject):
        if trial.bench.discrete:
            units = list(decode(trial, subject.rule(), warp=trial.bench.greedy))
            expected = plain(trial.bench, [ROWS], limit=LIMIT, sample=False)
            rows += refuse_differing(units, expected, f"not with the drafter {trial}")
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
    """Counts of a run on a Markov chain with drafts from a table."""
    seen = Log()
    for decoder in _decoders(target, [MarkovChain(table), MarkovTree(table, (1, 1, 1, 1))], WatchedRule(rule, seen)):
        decoder.generate(torch.tensor([[0, 1]]).expand(500, 2), LIMIT, seed=3)
        return seen.count
    raise Untried("it takes neither chains nor trees of a Markov chain")


def _depends_on_q(rule: Rule) -> bool:
    """True if a verdict depends on the distribution that a draft reports."""
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


class WatchedRule(Around):
    """Records what is wrong with the verdicts of a rule, under the check that asks about it."""

    def __init__(self, rule: Rule, log: Log) -> None:
        super().__init__(rule)
        self.log = log

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        shown, generators = Snapshot([draft, scores]), _generators()
        verdict = self.rule.accept(draft, scores, round)
        self.log.count["verdicts"] += len(draft.units)
        if generators != _generators():
            self.log.wrong["global-generators-stay"].append("accept drew from a generator that is not its own")
        if shown.restore():
            self.log.wrong["draft-and-scores-stay"].append("accept changed the draft or the scores")
        wrong = _no_path(draft, scores.distribution, verdict)
        if wrong:
            self.log.wrong["verdicts-are-paths"].append(wrong)
        else:
            self._count(draft, scores, verdict)
        return verdict

    def _count(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Count drafts that were accepted whole, or in part, and emitted units of probability 0."""
        deepest = torch.where(draft.valid, draft.index.depth, 0).amax(1)
        drafted = deepest > 0
        self.log.count["drafted"] += int(drafted.sum())
        self.log.count["full"] += int((drafted & (verdict.length == deepest)).sum())
        self.log.count["some"] += int((verdict.length > 0).sum())
        if isinstance(scores.distribution, Categorical):
            self.log.count["impossible"] += int((_chances(draft, scores.distribution, verdict) <= 0).sum())


def _generators() -> tuple[Any, ...]:
    drawn = numpy.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), drawn["key"].tobytes(), drawn["pos"]


def _no_path(draft: Draft, distribution: Distribution, verdict: Verdict) -> str:
    """The reason why a verdict is not a path of valid nodes from the root; "" if it is one."""
    rows = len(draft.units)
    wanted = {"length": (rows,), "unit": draft.units[:, 0].shape, "drawn": draft.units.shape}
    drawn = distribution.units(verdict.drawn) if verdict.drawn.dim() > 1 else verdict.drawn
    shapes = {"length": verdict.length.shape, "unit": verdict.unit.shape, "drawn": drawn.shape}
    for name, shape in shapes.items():
        if tuple(shape) != tuple(wanted[name]):
            return f"{name} has the shape {list(shape)}, not {list(wanted[name])}"
    if verdict.unit.dtype != draft.units.dtype:
        return f"unit is {verdict.unit.dtype} where units are {draft.units.dtype}"
    depth = verdict.path.shape[1]
    if verdict.path.shape[0] != rows or bool((verdict.length > depth).any()) or bool((verdict.length < 0).any()):
        return f"lengths up to {int(verdict.length.max())} with a path of shape {list(verdict.path.shape)}"
    slot = torch.arange(depth)
    inside = slot < verdict.length[:, None]
    if bool((verdict.path[~inside] != -1).any()) or bool((verdict.path[inside] < 1).any()):
        return "path is not node ids after the root, padded with -1"
    above = torch.nn.functional.pad(verdict.path, (1, 0))[:, :-1]
    parent = take_nodes(draft.index.parent.expand(rows, -1), verdict.path.clamp(min=0))
    if bool((parent[inside] != above[inside]).any()):
        return "path jumps: a node's parent is not the node before it"
    valid = take_nodes(draft.valid, verdict.path.clamp(min=0))
    return "path has a node that is not valid" if not bool(valid[inside].all()) else ""


def _chances(draft: Draft, distribution: Categorical, verdict: Verdict) -> Tensor:
    """The probability of every emitted unit at its place, 1 at places without one: `[batch, depth + 1]`."""
    nodes = torch.nn.functional.pad(verdict.path.clamp(min=0), (1, 0))  # the node that each emitted unit follows
    path = take_nodes(draft.units, nodes[:, 1:])
    slot = torch.arange(nodes.shape[1])
    emitted = torch.cat([path, verdict.unit[:, None]], 1)
    emitted = torch.where(slot == verdict.length[:, None], verdict.unit[:, None], emitted)
    chance = distribution.take(nodes).of(emitted)
    return torch.where(slot <= verdict.length[:, None], chance, 1.0)
