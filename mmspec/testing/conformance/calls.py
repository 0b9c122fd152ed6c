"""A target driven by the test: drafts of random units, commits of paths that the test chose, and reference scores.

The reference is the target itself after a fresh prefill of the units in question (`Example.again`), or, where a prompt
is not made of units, after one-unit passes from the start.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, take_nodes, where_nodes
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.conformance.benches import Bench, scores_by_passes

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
