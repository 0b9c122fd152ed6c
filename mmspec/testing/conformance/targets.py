"""The promises of a target: a pass over a tree scores every node as if only its path had been read, and a commit keeps
the accepted path and nothing else.

The target is driven by the check: drafts of random units, commits of chosen paths, and reference scores, which are the
target's own after a fresh prefill of the units in question (`Example.again`), or, where a prompt is not made of units,
after one-unit passes from the start.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, take_nodes, where_nodes
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.conformance.benches import Bench, scores_by_passes
from mmspec.testing.conformance.manifest import TARGET
from mmspec.testing.conformance.promise import Broken, Untried, offers, promise
from mmspec.testing.conformance.subject import Subject

WIDTH, LIMIT = 8, 40


@dataclass
class DrivenCall:
    """A call whose drafts and commits are chosen by the test."""

    bench: Bench  # the target and its prompts
    rows: list[int]  # the rows of the batch, as numbers
    started: Prefill  # the result of the prefill
    units: Tensor  # `[batch, capacity, *unit]`: emitted units, the root last
    count: Tensor  # `[batch]`: how many units are emitted
    seed: int = 0  # the seed of the next random units

    @staticmethod
    def begin(bench: Bench, rows: list[int]) -> "DrivenCall":
        """Prefill, and emit a random first unit."""
        started = bench.target.start(bench.prompt(rows), LIMIT, WIDTH)
        like = started.prompt
        units = like.new_zeros(len(rows), LIMIT + WIDTH, *like.shape[2:])
        call = DrivenCall(bench, rows, started, units, torch.ones(len(rows), dtype=torch.int64))
        units[:, 0] = call.random_units(1)[:, 0]
        return call

    def random_units(self, nodes: int) -> Tensor:
        """Random units that depend on the row and not on its batch: `[batch, nodes, *unit]`."""
        like, units = self.units, []
        for row in self.rows:
            generator = torch.Generator().manual_seed(100 * row + self.seed)
            shape = (nodes, *like.shape[2:])
            vocab = self.bench.target.vocab
            units.append(
                torch.randint(vocab, shape, generator=generator) if vocab else torch.randn(shape, generator=generator)
            )
        self.seed += 1
        return torch.stack(units).to(like)

    @property
    def root(self) -> Tensor:
        """`[batch, *unit]`."""
        return take_nodes(self.units, (self.count - 1)[:, None])[:, 0]

    def draft(self, parents: tuple[int, ...]) -> Draft:
        """A rooted draft of random units."""
        draft = Draft.tree(self.random_units(len(parents)), parents)
        return draft.rooted(self.root, torch.full_like(self.count, WIDTH))

    def verify(self, draft: Draft, first: int = 0) -> TargetOutput:
        return self.bench.target.verify(self.started.cache, draft, first)

    def commit(self, draft: Draft, path: Tensor, length: Tensor) -> None:
        """Commit the root and `length [batch]` nodes of `path`; emit these nodes and one random unit, the new root."""
        units = torch.cat([take_nodes(draft.units, path.clamp(min=0)), self.random_units(1)], 1)
        slot = torch.arange(units.shape[1])
        last = slot == length[:, None]
        units = where_nodes(last, units[:, -1:].expand_as(units), units)
        for row in range(len(length)):
            n = int(length[row]) + 1
            self.units[row, self.count[row] : self.count[row] + n] = units[row, :n]
        path = torch.where(torch.arange(path.shape[1]) < length[:, None], path, -1)
        self.bench.target.commit(self.started.cache, path, length + 1)
        self.count = self.count + length + 1

    def known(self, draft: Draft, node: int) -> tuple[Tensor, Tensor]:
        """All units down to a node, padded on the left like a prompt, `[batch, known]`; and the padding `[batch]`."""
        above = [i for i in draft.index.ancestor[0, node].nonzero()[:, 0].tolist() if i]
        rows = []
        for row in range(len(self.count)):
            prompt = self.started.prompt[row, int(self.started.pads[row]) :]
            rows.append(torch.cat([prompt, self.units[row, : self.count[row]], draft.units[row, above]]))
        longest = max(self.started.prompt.shape[1], *map(len, rows))
        units = torch.stack([torch.cat([row.new_zeros(longest - len(row), *row.shape[1:]), row]) for row in rows])
        return units, torch.tensor([longest - len(row) for row in rows])


def reference(call: DrivenCall, draft: Draft, node: int) -> TargetOutput:
    """Scores after a node, computed without trees and without commits of more than one unit."""
    bench = call.bench
    if bench.again is not None:
        return bench.target.start(bench.again(*call.known(draft, node)), LIMIT, WIDTH).output
    above = [i for i in draft.index.ancestor[0, node].nonzero()[:, 0].tolist() if i]
    outputs = []
    for row, number in enumerate(call.rows):
        started = bench.target.start(bench.prompt([number]), LIMIT, WIDTH)
        path = torch.cat([call.units[row, : call.count[row]], draft.units[row, above]])
        outputs.append(scores_by_passes(bench, started, path))
    return _joined(outputs)


def numbers(output: TargetOutput) -> list[Tensor]:
    """The output of a pass as numbers, `[batch, node, …]`; distributions by a draw from fixed noise."""
    if output.logits is not None:
        return [output.logits] if output.null is None else [output.logits, output.null]
    distribution: Any = output.distribution
    if isinstance(distribution, Categorical):
        return [distribution.on(None)]
    count = distribution.confidence().shape
    rows = torch.zeros(count[0], dtype=torch.int64)
    noise = PhiloxSource.seeded([0] * count[0], count[0]).fresh(rows, 0, count[1])
    return [distribution.draw(noise).double()]


def _joined(outputs: list[TargetOutput]) -> TargetOutput:
    logits, *null = [torch.cat(each) for each in zip(*map(numbers, outputs), strict=True)]
    return TargetOutput(logits=logits, null=null[0] if null else None)


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
