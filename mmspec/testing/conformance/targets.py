"""The promises of a target: a pass over a tree scores every node as if only its path had been read, and a commit keeps
the accepted path and nothing else.
"""

import torch

from mmspec.core.types import Draft, TargetOutput
from mmspec.testing.conformance.benches import Bench
from mmspec.testing.conformance.calls import WIDTH, DrivenCall, numbers, reference
from mmspec.testing.conformance.manifest import TARGET
from mmspec.testing.conformance.promise import Broken, Untried, offers, promise
from mmspec.testing.conformance.subject import Subject

ROWS = [0, 1, 2, 3]
TREE = (-1, -1, 0, 0, 1, 2, 5)
CHAIN = (-1, 0, 1, 2, 3)
_LONG, _SHORT, _WHOLE = [1, 3, 6, 7], [2, 5, -1, -1], [1, 2, 3, 4, 5]
PATHS = {TREE: [_SHORT, _LONG, _LONG, _SHORT], CHAIN: [_WHOLE] * 4}
"""A path of each row, as node ids of the rooted draft."""

TOLERANCE = 1e-3
"""Largest difference, in units of the largest score: rounding stays below, a wrong mask or position does not."""


def benches(subject: Subject) -> list[Bench]:
    """The benches of the target's examples."""
    if not subject.own_benches:
        raise Untried(TARGET)
    return subject.own_benches


def largest_error(call: DrivenCall, draft: Draft, when: str) -> float:
    """The largest difference of a pass from the reference at every node of a draft."""
    output = call.verify(draft)
    differences = []
    for node in range(draft.nodes):
        at = output.take(torch.full((len(call.rows), 1), node))
        differences.append(difference(at, reference(call, draft, node)))
    only_rounding(max(differences), f"{when}, scores are not those of the units alone")
    return max(differences)


def difference(a: TargetOutput, b: TargetOutput) -> float:
    """The largest difference of two passes, in units of the largest score (at least 1)."""
    pairs = zip(numbers(a), numbers(b), strict=True)
    return max(float((x - y).abs().max() / y.abs().max().clamp(min=1)) for x, y in pairs)


def only_rounding(worst: float, reason: str = "") -> str:
    """The number that a check reports for its largest difference."""
    number = f"max |Δ| {worst:.0e} of the largest score"
    if worst > TOLERANCE:
        raise Broken(reason, number)
    return number


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
        call = DrivenCall.begin(bench, ROWS)
        worst = max(worst, largest_error(call, call.draft(parents), "in a draft"))
    return only_rounding(worst)


@promise("target")
def verify_keeps_nothing(subject: Subject) -> str:
    """`verify` commits nothing: after another draft, the same one has the same scores."""
    worst = 0.0
    for bench in benches(subject):
        call = DrivenCall.begin(bench, ROWS)
        draft = call.draft(CHAIN)
        before = call.verify(draft)
        call.verify(call.draft(CHAIN[:3]))
        worst = max(worst, difference(call.verify(draft), before))
    return only_rounding(worst, "a draft that was not committed changed the scores")


@promise("target", when=offers("grow"))
def drafts_grow_in_pieces(subject: Subject) -> str:
    """`grow`: a draft that is verified in pieces has the scores of the whole."""
    worst = 0.0
    for bench in benches(subject):
        parents = TREE if "tree" in bench.target.offers else CHAIN
        call = DrivenCall.begin(bench, ROWS)
        whole = call.draft(parents)
        right = call.verify(whole)
        for first in (2, 4):
            part = Draft.tree(whole.drafted[:, : first - 1], parents[: first - 1])
            call.verify(part.rooted(call.root, torch.full_like(call.count, WIDTH)))
            rest = right.take(torch.arange(first, whole.nodes)[None])
            worst = max(worst, difference(call.verify(whole, first), rest))
    return only_rounding(worst, "the nodes of a second piece are scored differently")


@promise("target")
def commits_are_remembered(subject: Subject) -> str:
    """After any commits, other ones in every row, scores are those of a fresh prefill of what was kept."""
    worst, commits = 0.0, 0
    for bench in benches(subject):
        trees = "tree" in bench.target.offers
        call = DrivenCall.begin(bench, ROWS)
        for step in range(6):
            parents = TREE if trees and step % 2 else CHAIN
            draft = call.draft(parents)
            call.verify(draft)
            path, deepest = torch.tensor(PATHS[parents]), torch.tensor([sum(n > 0 for n in p) for p in PATHS[parents]])
            call.commit(draft, path, torch.minimum(torch.tensor([step, 3, 4 - step % 3, step % 2]), deepest))
            commits += len(ROWS)
        last = call.draft(CHAIN[:2])
        worst = max(worst, largest_error(call, last, f"after {commits} commits"))
    return f"{only_rounding(worst)} after {commits} commits"


@promise("target")
def rows_are_independent(subject: Subject) -> str:
    """A row of a batch is what it is alone: its prefill, its drafts, what it keeps."""
    worst = 0.0
    for bench in benches(subject):
        together = _followed(bench, ROWS)
        for place, row in enumerate(ROWS):
            for whole, alone in zip(together, _followed(bench, [row]), strict=True):
                worst = max(worst, difference(_rows(whole, place), alone))
    return only_rounding(worst, "a row's scores depend on its batch")


@promise("target", when=offers("truncate"))
def truncation_goes_back(subject: Subject) -> str:
    """`truncate`: after forgetting the latest units, scores are what they were before these came."""
    worst = 0.0
    for bench in benches(subject):
        call = DrivenCall.begin(bench, ROWS)
        prompt = call.started.prompt.shape[1] - call.started.pads
        drafts, outputs = [], []
        for _ in range(4):
            draft = call.draft(())
            drafts.append(draft)
            outputs.append(call.verify(draft))
            call.commit(draft, torch.full((len(ROWS), 0), -1), torch.zeros_like(call.count))
        for step in (3, 1):
            bench.target.truncate(call.started.cache, prompt + step)
            worst = max(worst, difference(call.verify(drafts[step]), outputs[step]))
    return only_rounding(worst, "what was forgotten still counts")


def _followed(bench: Bench, rows: list[int]) -> list[TargetOutput]:
    """Scores of a prefill, and of two drafts with a commit between them."""
    call = DrivenCall.begin(bench, rows)
    first = call.draft(CHAIN)
    outputs = [call.started.output, call.verify(first)]
    call.bench.target.commit(call.started.cache, torch.full((len(rows), 0), -1), torch.ones_like(call.count))
    call.units[:, 1], call.count = first.units[:, 1], call.count + 1
    return [*outputs, call.verify(call.draft(CHAIN))]


def _rows(output: TargetOutput, row: int) -> TargetOutput:
    """One row of a pass."""
    if output.distribution is not None:
        return TargetOutput(logits=numbers(output)[0][row : row + 1])
    null = None if output.null is None else output.null[row : row + 1]
    assert output.logits is not None
    return TargetOutput(logits=output.logits[row : row + 1], null=null)
