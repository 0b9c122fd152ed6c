"""A rule over drafts whose distributions are broken (NaN), empty (no mass) or all mass on one unit.

Such drafts occur where a draft model may emit none of its units (`bad_words_ids` with a small vocabulary).
"""

from dataclasses import replace

from mmspec.core.protocols import Drafter
from mmspec.core.rules import Rule
from mmspec.testing.conformance.exactness import Evidence, follows, known
from mmspec.testing.conformance.play import plain, refuse_differing
from mmspec.testing.conformance.promise import Broken, Untried, is_exact, promise
from mmspec.testing.conformance.rule_pairs import LIMIT, ROWS, Pair, pairs
from mmspec.testing.conformance.subject import Subject
from mmspec.testing.toys.degenerate import KINDS, DegenerateDrafts


@promise("rule")
def degenerate_drafts_do_no_harm(subject: Subject) -> str:
    """Drafted units whose distribution is broken, empty or one unit alone leave the output what it would be."""
    rule, exact = subject.rule(), is_exact(subject.component)
    found = []
    for pair in _one_of_each_shape(subject, exact):
        try:
            found.append(_measured(_spoiled(pair, exact), rule))
        except Broken as harm:
            if exact:
                _refuse_wrong_already(pair, rule, harm)
            raise
    return f"{min(found).number}, the smallest of {len(found)}"


def _measured(pair: Pair, rule: Rule) -> Evidence:
    if rule.exactness != "invariant":
        return follows(pair, rule)
    rows = refuse_differing(
        list(pair.decode(rule)), plain(pair.bench, [ROWS], limit=LIMIT), f"with {pair}, rows are not the plain ones"
    )
    return Evidence(1.0, f"0 of {rows} rows differ with {pair}")


def _refuse_wrong_already(pair: Pair, rule: Rule, harm: Broken) -> None:
    """Raise `Untried` if the output with ordinary drafts is wrong too, which other checks report."""
    try:
        _measured(pair, rule)
    except Broken:
        raise Untried("with ordinary drafts its output is wrong already") from harm


def _one_of_each_shape(subject: Subject, exact: bool) -> list[Pair]:
    """The first chain, tree and window whose units are drawn from a distribution."""
    shapes: dict[tuple[str, bool], Pair] = {}
    for pair in pairs(subject) if subject.component.exactness == "invariant" else known(subject):
        shape, offers = pair.shape.split()[0], pair.drafter().offers
        # New units of a window of ids are point masses, which are not spoiled: lossy rules are not tried on these.
        if "q" in offers and (exact or not (shape == "window" and pair.bench.discrete)):
            shapes.setdefault((shape, pair.bench.discrete), pair)
    if not shapes:
        raise Untried("it takes no drafts that have a distribution")
    return list(shapes.values())


def _spoiled(pair: Pair, exact: bool) -> Pair:
    """The pair with some degenerate nodes of every kind; for other rules, all nodes broken or empty.

    No rule may accept a unit whose distribution is broken or empty.
    """
    kinds, share = (KINDS, 0.4) if exact else (KINDS[:2], 1.0)

    def drafter() -> Drafter:
        return DegenerateDrafts(pair.drafter(), kinds, share)

    rows = pair.rows if exact else min(pair.rows, 10_000)  # a rule that accepts such units is wrong by far
    return replace(pair, shape=f"degenerate {pair.shape}", drafter=drafter, rows=rows)
