"""What a rule makes of drafts whose distributions are none, or have no choice: broken (NaN), empty, of one unit.

They come about where a draft model may say nothing that it knows (`bad_words_ids` with a small vocabulary).
"""

from dataclasses import replace

from mmspec.core.protocols import Drafter
from mmspec.core.rules import Rule
from mmspec.testing.conformance.check import Broken, Untried, promise
from mmspec.testing.conformance.exactness import Evidence, follows, known
from mmspec.testing.conformance.play import differing, plain
from mmspec.testing.conformance.rules import LIMIT, ROWS, Pair, exact, pairs
from mmspec.testing.conformance.subject import Subject
from mmspec.testing.toys.degenerate import KINDS, DegenerateDrafts


@promise("rule")
def degenerate_drafts_do_no_harm(subject: Subject) -> str:
    """Drafted units whose distribution is broken, empty or one unit alone leave the output what it would be."""
    rule, is_exact = subject.rule(subject.examples[0]), exact(subject.component)
    found = []
    for pair in _one_of_each_shape(subject, is_exact):
        try:
            found.append(_tried(_spoiled(pair, is_exact), rule))
        except Broken as harm:
            if is_exact:
                _refuse_wrong_already(pair, rule, harm)
            raise
    return f"{min(found).number}, the smallest of {len(found)}"


def _tried(pair: Pair, rule: Rule) -> Evidence:
    if rule.exactness != "invariant":
        return follows(pair, rule)
    wrong = differing(list(pair.decode(rule)), plain(pair.bench, [ROWS], limit=LIMIT))
    number = f"{wrong} of {len(ROWS)} rows differ with {pair}"
    if wrong:
        raise Broken("rows are not the plain ones", number)
    return Evidence(1.0, number)


def _refuse_wrong_already(pair: Pair, rule: Rule, harm: Broken) -> None:
    """What is wrong with ordinary drafts is another check's to tell."""
    try:
        _tried(pair, rule)
    except Broken:
        raise Untried("with ordinary drafts its output is wrong already") from harm


def _one_of_each_shape(subject: Subject, is_exact: bool) -> list[Pair]:
    """The first chain, tree and window whose units are drawn.

    Raises:
        Untried: There is none.
    """
    shapes: dict[tuple[str, bool], Pair] = {}
    for pair in pairs(subject) if subject.component.exactness == "invariant" else known(subject):
        shape, offers = pair.shape.split()[0], pair.drafter().offers
        # Units that enter a window of ids are point masses, which nothing spoils: a lossy rule may do its worst there.
        if "q" in offers and (is_exact or not (shape == "window" and pair.bench.discrete)):
            shapes.setdefault((shape, pair.bench.discrete), pair)
    if not shapes:
        raise Untried("it takes no drafts that have a distribution")
    return list(shapes.values())


def _spoiled(pair: Pair, is_exact: bool) -> Pair:
    """Some nodes of every kind; of rules that are not exact all, broken or empty: such a unit nobody may accept."""
    kinds, share = (KINDS, 0.4) if is_exact else (KINDS[:2], 1.0)

    def drafter() -> Drafter:
        return DegenerateDrafts(pair.drafter(), kinds, share)

    rows = pair.rows if is_exact else min(pair.rows, 10_000)  # who accepts such units is wrong by far
    return replace(pair, shape=f"degenerate {pair.shape}", drafter=drafter, rows=rows)
