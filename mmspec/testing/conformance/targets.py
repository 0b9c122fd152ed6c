"""What a target promises: a pass over a tree scores every node as if its path alone had been read, and a commit keeps
just that path.
"""

from typing import Any

import torch

from mmspec.core.types import Draft, TargetOutput
from mmspec.registry import TargetSpec
from mmspec.testing.conformance.benches import Bench
from mmspec.testing.conformance.calls import WIDTH, Call, numbers, reference
from mmspec.testing.conformance.check import Broken, Untried, promise
from mmspec.testing.conformance.manifest import TARGET
from mmspec.testing.conformance.subject import Subject

ROWS = [0, 1, 2, 3]
TREE = (-1, -1, 0, 0, 1, 2, 5)
CHAIN = (-1, 0, 1, 2, 3)
_LONG, _SHORT, _WHOLE = [1, 3, 6, 7], [2, 5, -1, -1], [1, 2, 3, 4, 5]
PATHS = {TREE: [_SHORT, _LONG, _LONG, _SHORT], CHAIN: [_WHOLE] * 4}
"""A path of each row, as node ids of the rooted draft."""

TOLERANCE = 1e-3
"""Of the largest logit, or of what a distribution draws: rounding stays below, a wrong mask or position does not."""


def offers(word: str) -> Any:
    """Whether a component offers a word."""

    def offered(component: TargetSpec) -> bool:
        return word in component.offers

    return offered


def benches(subject: Subject) -> list[Bench]:
    """Where it is tried.

    Raises:
        Untried: It has no example.
    """
    if not subject.own_benches:
        raise Untried(TARGET)
    return subject.own_benches


def compare(call: Call, draft: Draft, output: TargetOutput, rows: list[int], what: str) -> float:
    """The largest difference of a pass from the reference at every node.

    Raises:
        Broken: It is more than rounding.
    """
    worst = 0.0
    for node in range(draft.nodes):
        at = output.take(torch.full((len(rows), 1), node))
        worst = max(worst, difference(at, reference(call, draft, node, rows)))
    if worst > TOLERANCE:
        raise Broken(f"{what}, scores are not those of the units alone", number(worst))
    return worst


def difference(a: TargetOutput, b: TargetOutput) -> float:
    """How far two passes are apart, in units of the largest number; distributions by what they draw from the same
    noise.
    """
    worst = 0.0
    for x, y in zip(numbers(a), numbers(b), strict=True):
        worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp(min=1)))
    return worst


def number(worst: float) -> str:
    """The number of the checks here."""
    return f"max |Δ| {worst:.0e} of the largest score"


@promise("target")
def chains_are_exact(subject: Subject) -> str:
    """`verify` scores every node of a chain as if only its prefix had been read."""
    return _drafts_are_scored(subject, CHAIN)


@promise("target", when=offers("tree"))
def trees_are_exact(subject: Subject) -> str:
    """`verify` scores every node of a tree as if only its own path had been read."""
    return _drafts_are_scored(subject, TREE)


def _drafts_are_scored(subject: Subject, parents: tuple[int, ...]) -> str:
    worst = 0.0
    for bench in benches(subject):
        call = Call.begin(bench, ROWS)
        draft = call.draft(parents, ROWS)
        worst = max(worst, compare(call, draft, call.verify(draft), ROWS, "in a draft"))
    return number(worst)


@promise("target")
def verify_keeps_nothing(subject: Subject) -> str:
    """`verify` commits nothing: after another draft, the same one has the same scores."""
    worst = 0.0
    for bench in benches(subject):
        call = Call.begin(bench, ROWS)
        draft = call.draft(CHAIN, ROWS)
        before = call.verify(draft)
        call.verify(call.draft(CHAIN[:3], ROWS))
        worst = max(worst, difference(call.verify(draft), before))
    if worst > TOLERANCE:
        raise Broken("a draft that was not committed changed the scores", number(worst))
    return number(worst)


@promise("target", when=offers("grow"))
def drafts_grow_in_pieces(subject: Subject) -> str:
    """`grow`: a draft that is verified in pieces has the scores of the whole."""
    worst = 0.0
    for bench in benches(subject):
        parents = TREE if "tree" in bench.target.offers else CHAIN
        call = Call.begin(bench, ROWS)
        whole = call.draft(parents, ROWS)
        right = call.verify(whole)
        for first in (2, 4):
            part = Draft.tree(whole.drafted[:, : first - 1], parents[: first - 1])
            call.verify(part.rooted(call.root, torch.full_like(call.count, WIDTH)))
            rest = right.take(torch.arange(first, whole.nodes)[None])
            worst = max(worst, difference(call.verify(whole, first), rest))
    if worst > TOLERANCE:
        raise Broken("the nodes of a second piece are scored differently", number(worst))
    return number(worst)


@promise("target")
def commits_are_remembered(subject: Subject) -> str:
    """After any commits, other ones in every row, scores are those of a fresh prefill of what was kept."""
    worst, commits = 0.0, 0
    for bench in benches(subject):
        trees = "tree" in bench.target.offers
        call = Call.begin(bench, ROWS)
        for step in range(6):
            parents = TREE if trees and step % 2 else CHAIN
            draft = call.draft(parents, ROWS)
            call.verify(draft)
            path, deepest = torch.tensor(PATHS[parents]), torch.tensor([sum(n > 0 for n in p) for p in PATHS[parents]])
            call.commit(draft, path, torch.minimum(torch.tensor([step, 3, 4 - step % 3, step % 2]), deepest))
            commits += len(ROWS)
        last = call.draft(CHAIN[:2], ROWS)
        worst = max(worst, compare(call, last, call.verify(last), ROWS, f"after {commits} commits"))
    return f"{number(worst)} after {commits} commits"


@promise("target")
def rows_are_independent(subject: Subject) -> str:
    """A row of a batch is what it is alone: its prefill, its drafts, what it keeps."""
    worst = 0.0
    for bench in benches(subject):
        together = _followed(bench, ROWS)
        for place, row in enumerate(ROWS):
            for whole, alone in zip(together, _followed(bench, [row]), strict=True):
                worst = max(worst, difference(_rows(whole, place), alone))
    if worst > TOLERANCE:
        raise Broken("a row's scores depend on its batch", number(worst))
    return number(worst)


@promise("target", when=offers("truncate"))
def truncation_goes_back(subject: Subject) -> str:
    """`truncate`: after forgetting the latest units, scores are what they were before these came."""
    worst = 0.0
    for bench in benches(subject):
        call = Call.begin(bench, ROWS)
        given = call.started.prompt.shape[1] - call.started.pads
        drafts, outputs = [], []
        for _ in range(4):
            draft = call.draft((), ROWS)
            drafts.append(draft)
            outputs.append(call.verify(draft))
            call.commit(draft, torch.full((len(ROWS), 0), -1), torch.zeros_like(call.count))
        for step in (3, 1):
            bench.target.truncate(call.started.cache, given + step)
            worst = max(worst, difference(call.verify(drafts[step]), outputs[step]))
    if worst > TOLERANCE:
        raise Broken("what was forgotten still counts", number(worst))
    return number(worst)


def _followed(bench: Bench, rows: list[int]) -> list[TargetOutput]:
    """Scores of a prefill, and of two drafts with a commit between them."""
    call = Call.begin(bench, rows)
    first = call.draft(CHAIN, rows)
    outputs = [call.started.output, call.verify(first)]
    call.bench.target.commit(call.started.cache, torch.full((len(rows), 0), -1), torch.ones_like(call.count))
    call.units[:, 1], call.count = first.units[:, 1], call.count + 1
    return [*outputs, call.verify(call.draft(CHAIN, rows))]


def _rows(output: TargetOutput, row: int) -> TargetOutput:
    """One row of a pass."""
    if output.distribution is not None:
        return TargetOutput(logits=numbers(output)[0][row : row + 1])
    null = None if output.null is None else output.null[row : row + 1]
    assert output.logits is not None
    return TargetOutput(logits=output.logits[row : row + 1], null=null)
