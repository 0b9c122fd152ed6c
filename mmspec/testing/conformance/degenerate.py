"""What a rule makes of drafts whose distributions are none, or have no choice: broken (NaN), empty, of one unit.

They come about where a draft model may say nothing that it knows (`bad_words_ids` with a small vocabulary).
"""

from mmspec.testing.conformance.check import Broken, Untried, promise
from mmspec.testing.conformance.exactness import follows, known
from mmspec.testing.conformance.play import differing, plain
from mmspec.testing.conformance.rules import LIMIT, ROWS, Pair, exact, pairs
from mmspec.testing.conformance.subject import Subject
from mmspec.testing.toys.degenerate import KINDS, DegenerateDrafts


@promise("rule")
def degenerate_drafts_do_no_harm(subject: Subject) -> str:
    """Drafted units whose distribution is broken, empty or one unit alone leave the output what it would be."""
    rule = subject.rule(subject.examples[0])
    if rule.exactness == "invariant":
        rows = 0
        for pair in _one_of_each_shape(subject, pairs(subject)):
            wrong = differing(list(pair.decode(rule)), plain(pair.bench, [ROWS], limit=LIMIT))
            rows += len(ROWS)
            if wrong:
                raise Broken(f"with the drafter {pair}, rows are not the plain ones", f"{wrong} of {rows} rows differ")
        return f"0 of {rows} rows differ"
    found = [follows(pair, rule) for pair in _one_of_each_shape(subject, known(subject))]
    return f"{min(found).number}, the smallest of {len(found)}"


def _one_of_each_shape(subject: Subject, found: list[Pair]) -> list[Pair]:
    """The first chain, tree and window whose units are drawn; of a rule that is not exact, all of it spoiled.

    Raises:
        Untried: There is none.
    """
    shapes: dict[tuple[str, bool], Pair] = {}
    for pair in found:
        shape, offers = pair.shape.split()[0], pair.drafter().offers
        # Units that enter a window of ids are point masses, which nothing can spoil: no place to see a rule spare all.
        if "q" in offers and (exact(subject.component) or not (shape == "window" and pair.bench.discrete)):
            shapes.setdefault((shape, pair.bench.discrete), _spoiled(pair, exact(subject.component)))
    if not shapes:
        raise Untried("it takes no drafts that have a distribution")
    return list(shapes.values())


def _spoiled(pair: Pair, some: bool) -> Pair:
    """Some nodes of every kind; or all of them, broken or empty: nobody may take such a unit for a draft."""
    kinds, share = (KINDS, 0.4) if some else (KINDS[:2], 1.0)
    return Pair(
        pair.bench, f"degenerate {pair.shape}", lambda: DegenerateDrafts(pair.drafter(), kinds, share), pair.rows
    )
