"""A rule over drafts whose distributions are broken (NaN), empty (no mass) or all mass on one unit.

Such drafts occur where a draft model may emit none of its units (`bad_words_ids` with a small vocabulary).
"""

from dataclasses import replace

from mmspec.core.protocols import Drafter
from mmspec.core.rules import Rule
from mmspec.testing.conformance.exactness import Evidence, follows, known
from mmspec.testing.conformance.play import plain, refuse_differing
from mmspec.testing.conformance.promise import Broken, Untried, is_exact, promise
from mmspec.testing.conformance.rule_trials import LIMIT, ROWS, decode, rule_trials
from mmspec.testing.conformance.subject import Subject, Trial
from mmspec.testing.toys.degenerate import KINDS, DegenerateDrafts


@promise("rule")
def degenerate_drafts_do_no_harm(subject: Subject) -> str:
    """Drafted units whose distribution is broken, empty or one unit alone leave the output what it would be."""
    rule, exact = subject.rule(), is_exact(subject.component)
    found = []
    for trial in _one_of_each_shape(subject, exact):
        try:
            found.append(_measured(_spoiled(trial, exact), rule))
        except Broken as harm:
            if exact:
                _refuse_wrong_already(trial, rule, harm)
            raise
    return f"{min(found).number}, the smallest of {len(found)}"


def _measured(trial: Trial, rule: Rule) -> Evidence:
    if rule.exactness != "invariant":
        return follows(trial, rule)
    rows = refuse_differing(
        list(decode(trial, rule)), plain(trial.bench, [ROWS], limit=LIMIT), f"with {trial}, rows are not the plain ones"
    )
    return Evidence(1.0, f"0 of {rows} rows differ with {trial}")


def _refuse_wrong_already(trial: Trial, rule: Rule, harm: Broken) -> None:
    """Raise `Untried` if the output with ordinary drafts is wrong too, which other checks report."""
    try:
        _measured(trial, rule)
    except Broken:
        raise Untried("with ordinary drafts its output is wrong already") from harm


def _one_of_each_shape(subject: Subject, exact: bool) -> list[Trial]:
    """The first chain, tree and window whose units are drawn from a distribution."""
    shapes: dict[tuple[str, bool], Trial] = {}
    for trial in rule_trials(subject) if subject.component.exactness == "invariant" else known(subject):
        shape, offers = trial.shape.split()[0], trial.drafter().offers
        # New units of a window of ids are point masses, which are not spoiled: lossy rules are not tried on these.
        if "q" in offers and (exact or not (shape == "window" and trial.bench.discrete)):
            shapes.setdefault((shape, trial.bench.discrete), trial)
    if not shapes:
        raise Untried("it takes no drafts that have a distribution")
    return list(shapes.values())


def _spoiled(trial: Trial, exact: bool) -> Trial:
    """The trial with some degenerate nodes of every kind; for other rules, all nodes broken or empty.

    No rule may accept a unit whose distribution is broken or empty.
    """
    kinds, share = (KINDS, 0.4) if exact else (KINDS[:2], 1.0)

    def drafter() -> Drafter:
        return DegenerateDrafts(trial.drafter(), kinds, share)

    rows = trial.rows if exact else min(trial.rows, 10_000)  # a rule that accepts such units is wrong by far
    return replace(trial, shape=f"degenerate {trial.shape}", drafter=drafter, rows=rows)
