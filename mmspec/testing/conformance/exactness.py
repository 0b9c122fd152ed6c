"""The exactness of a rule: its claim is measured, and a claim that is too strong fails.

`invariant` means equality with plain decoding for the same seed, `lossless` the exact joint of several units. Both hold
for every shape of draft that the rule takes.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.core.rules import Rule
from mmspec.testing.conformance.benches import Bench, gaussian
from mmspec.testing.conformance.play import plain, refuse_differing
from mmspec.testing.conformance.promise import Broken, Untried, claims, has_options, promise
from mmspec.testing.conformance.rule_trials import LIMIT, ROWS, decode, rule_trials
from mmspec.testing.conformance.subject import Subject, Trial
from mmspec.testing.lean import Leaning
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import (
    LEVEL,
    OTHER_SEED,
    chi_squared_sees,
    joint_p_value,
    ks_sees,
    normal_p_value,
    projections,
    total_variation,
)

CELLS = 400
"""Most cells of a joint: a joint of more units covers more rounds."""
TOKENS = 5
"""Units of a joint of continuous units."""


@promise("rule", when=claims("invariant"))
def output_equals_plain(subject: Subject) -> str:
    """`invariant`: with the same seed, the output is that of plain decoding, with every shape of draft."""
    rows = 0
    for trial in rule_trials(subject):
        expected = plain(trial.bench, [ROWS], limit=LIMIT)
        units = list(decode(trial, subject.rule()))
        rows += refuse_differing(units, expected, f"with the drafter {trial}, rows are not the plain ones")
    return f"0 of {rows} rows differ, {len(rule_trials(subject))} drafters"


@promise("rule", when=claims("lossless"))
def output_follows_the_distribution(subject: Subject) -> str:
    """`lossless`: the joint of several units is the target's own, with every shape of draft."""
    found = [follows(trial, subject.rule()) for trial in known(subject)]
    return f"{min(found).number}, the smallest of {len(found)}"


@promise("rule", when=claims("lossy"))
def lossy_says_so(subject: Subject) -> str:
    """`lossy`: reports of runs under it say so; the number is the distance of its joint from the target's."""
    rule, worst = subject.rule(), (0.0, "")
    for trial in known(subject):
        if trial.bench.next_distribution is not None:
            units, joint = sample(trial, rule, 0), joint_of(trial.bench)
            noise = 0.4 * (joint.numel() / len(units)) ** 0.5
            distance = total_variation(units, joint)
            worst = max(worst, (distance, f"total variation {distance:.3f} (chance alone ≤ {noise:.3f}) with {trial}"))
        elif not worst[1]:
            worst = (0.0, judged(trial, rule).number)
    _report_says(subject, "lossy", worst[1])
    return worst[1]


@promise("rule", when=lambda component: component.exactness == "lossy" and has_options(component))
def strict_end_is_exact(subject: Subject) -> str:
    """A lossy rule is exact at the strict end of an option: an end of its range, or the values in `Example.strict`."""
    best = Evidence(0.0, "no option has a range; give one (Field(ge=…, le=…)), or Example(strict=…)")
    for settings in _ends(subject):
        rule: Rule = subject.instance(subject.examples[0], settings)
        said = ", ".join(f"{name} = {value}" for name, value in settings.items())
        found = min(judged(trial, rule) for trial in known(subject))
        if found.p > LEVEL:
            return f"{said}: {found.number}"
        best = max(best, Evidence(found.p, f"{said}: {found.number}"))
    raise Broken("it is exact at no end of any option", best.number)


@promise("rule", when=claims("synthetic"))
def synthetic_says_so(subject: Subject) -> str:
    """`synthetic`: reports of runs under it say so."""
    report = _report_says(subject, "synthetic", "")
    return f"acceptance rate {report.acceptance_rate:.2f}, reported as {report.exactness}"


def _report_says(subject: Subject, word: str, number: str) -> Report:
    """A report of a run under the rule."""
    trial = rule_trials(subject)[0]
    decoder = Decoder(trial.bench.target, trial.drafter(), subject.rule(), k=4)
    report = decoder.generate(trial.bench.prompt(ROWS), LIMIT).report
    if report.exactness != word or word not in str(report):
        raise Broken(f"a report says {report.exactness!r}", number or report.exactness)
    return report


def known(subject: Subject) -> list[Trial]:
    """The trials whose joint distribution is known."""
    found = [
        trial
        for trial in rule_trials(subject)
        if trial.bench.next_distribution is not None or trial.bench is gaussian()
    ]
    if not found:
        raise Untried("no distribution to compare with: give an example with a target of at most 8 units")
    return found


@dataclass(frozen=True, order=True)
class Evidence:
    """The result of a test of the joint."""

    p: float  # the smaller of two p-values: of the joint, and of no lean towards the draft (`mmspec.testing.lean`).
    number: str  # both tests in words, each with the smallest bias that it sees in 95 of 100 runs


def follows(trial: Trial, rule: Rule) -> Evidence:
    """Evidence that the units follow the joint."""
    evidence = judged(trial, rule)
    if evidence.p <= LEVEL:
        raise Broken("units do not follow the target's distribution", evidence.number)
    return evidence


def judged(trial: Trial, rule: Rule) -> Evidence:
    """Evidence for or against the joint; a first seed that says no is followed by a second one."""
    evidence = _of_seed(trial, rule, 0)
    return evidence if evidence.p > LEVEL else _of_seed(trial, rule, OTHER_SEED)


def _of_seed(trial: Trial, rule: Rule, seed: int) -> Evidence:
    leaning = Leaning(rule)
    units = sample(trial, leaning, seed)
    p, number = _normal(trial.bench, units) if trial.bench is gaussian() else _discrete(trial.bench, units)
    lean = leaning.lean
    if lean.count:
        p = min(p, lean.p_value)
        number += f"; lean to the draft p = {lean.p_value:.2g} ({lean.count:,} units: sees a bias ≥ {lean.sees:.2%})"
    return Evidence(p, f"{number} with {trial}")


def _discrete(bench: Bench, units: Tensor) -> tuple[float, str]:
    joint = joint_of(bench)
    p, sees = joint_p_value(units, joint), chi_squared_sees(joint, len(units))
    distance = f", total variation {total_variation(units, joint):.3f}" if p <= LEVEL else ""
    return p, f"χ² p = {p:.2g} ({joint.numel()} cells, {len(units):,} rows: sees a bias ≥ {sees:.2%}){distance}"


def _normal(bench: Bench, units: Tensor) -> tuple[float, str]:
    target: Any = bench.target
    p, along = normal_p_value(units.flatten(1), *target.joint(TOKENS))
    sees = ks_sees(len(units), len(projections(len(along))))
    where = f" along {along}" if p <= LEVEL else ""
    return p, f"KS p = {p:.2g} ({len(units):,} rows: sees a bias ≥ {sees:.2%}){where}"


def sample(trial: Trial, rule: Rule, seed: int) -> Tensor:
    """Units of many equal rows: `[rows, length, *unit]`."""
    length = TOKENS if trial.bench is gaussian() else joint_of(trial.bench).dim()
    most = trial.bench.rows
    pieces = [range(first, min(first + most, trial.rows)) for first in range(0, trial.rows, most)]
    return torch.cat([decode(trial, rule, [0] * len(p), seed=seed + i, limit=length) for i, p in enumerate(pieces)])


def joint_of(bench: Bench) -> Tensor:
    """The exact joint of as many units as `CELLS` allow."""
    vocab = bench.target.vocab
    assert bench.next_distribution is not None and vocab is not None
    length = next(n for n in itertools.count(1) if vocab ** (n + 1) > CELLS)
    return exact_joint(bench.next_distribution, max(2, length), vocab)


def _ends(subject: Subject) -> Iterator[Mapping[str, Any]]:
    """Option values to try: those of the examples, else both ends of every range and all values of a switch or word."""
    strict = [example.strict for example in subject.examples if example.strict]
    if strict:
        yield from strict
        return
    from pydantic import TypeAdapter

    options: Any = subject.component.load_options()
    for name, schema in TypeAdapter(options).json_schema()["properties"].items():
        for part in schema.get("anyOf", [schema]):  # of a number or a word, each
            values = [part[end] for end in ("minimum", "maximum") if end in part]
            values += [False, True] if part.get("type") == "boolean" else part.get("enum", [])
            yield from ({name: value} for value in values)
