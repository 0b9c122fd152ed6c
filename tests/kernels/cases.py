"""Drafts and logits for the kernels' tests: chains, shared trees, a tree for every row, refused nodes, right drafts."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Match
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores

SHAPES = ("alone", "chain", "tree", "own trees")
LEVELS = [-1, 0, 0, 0, 1, 1, 2, 3, 4, 4, 7, 8, 8, 9, 11, 12]


@dataclass(frozen=True)
class Case:
    """One round: a draft, logits `[batch, node, vocab]`, and its noise."""

    draft: Draft
    logits: Tensor
    round: Round

    @property
    def scores(self) -> Scores:
        distribution = Categorical.of_logits(self.logits)
        return Scores(distribution, distribution.finite())

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(int(self.round.host_emitted[0]))


def index_of(shape: str, rows: int, nodes: int, generator: torch.Generator, device: torch.device) -> TreeIndex:
    if shape in ("alone", "chain"):
        return TreeIndex.chain(1 if shape == "alone" else nodes, device)
    if shape == "tree":
        return TreeIndex.static(LEVELS[:nodes], device)
    parent = torch.cat([torch.full((rows, 1), -1), torch.zeros(rows, 1).long()], 1)
    for node in range(2, nodes):
        parent = torch.cat([parent, torch.randint(0, node, (rows, 1), generator=generator)], 1)
    return TreeIndex.dynamic(parent.to(device))


def case(
    shape: str,
    device: torch.device,
    seed: int = 0,
    rows: int = 3,
    nodes: int = 9,
    vocab: int = 37,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Four in five drafted units are what the target draws, so that walks are long; one node in twenty is refused."""
    generator = torch.Generator().manual_seed(seed)
    index = index_of(shape, rows, nodes, generator, device)
    nodes = index.nodes
    source = PhiloxSource.seeded([seed * 1000 + 2**62 + row for row in range(rows)], rows, device)
    emitted = torch.randint(1, 5000, (rows,), generator=generator)
    round = Round(source, emitted.to(device), emitted.tolist())
    logits = (torch.randn(rows, nodes, vocab, generator=generator) * 3).to(device, dtype)
    units = torch.randint(vocab, (rows, nodes), generator=generator).to(device)
    valid = (torch.rand(rows, nodes, generator=generator) < 0.95).to(device)
    valid[:, 0] = True
    made = Case(Draft(units, index, valid), logits, round)
    right = (torch.rand(rows, nodes, generator=generator) < 0.8).to(device) & (index.depth > 0)
    for _ in range(3 if nodes > 1 else 0):
        drawn = Match().accept(made.draft, made.scores, round).drawn
        wanted = drawn.gather(1, index.parent.clamp(min=0).expand(rows, -1))
        made = replace(made, draft=replace(made.draft, units=torch.where(right, wanted, made.draft.units)))
    return made


def same(one: object, other: object) -> None:
    """Assert that two verdicts are equal."""
    for name in ("drawn", "length", "path", "unit"):
        a, b = getattr(one, name), getattr(other, name)
        assert a.shape == b.shape and a.dtype == b.dtype, name
        assert torch.equal(a, b), f"{name}: {a.tolist()} and {b.tolist()}"
