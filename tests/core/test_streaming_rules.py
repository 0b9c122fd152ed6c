"""The rules that stream over nodes decide as the formulas over all nodes at once do, to the bit, and hold little."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from mmspec.core.distributions import Categorical, Distribution, Mixed, PointMass, couple, dense
from mmspec.core.noise import Round, SpreadNoise, Substream
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, parts, walk_where
from mmspec.core.rules.siblings import _longest_walk
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores
from tests.support.mutants.siblings import at_every_node

ROWS, VOCAB = 40, 13
TREES = {
    "chain": [-1, 0, 1, 2, 3],
    "siblings": [-1, 0, 0, 0, 0],
    "levels": [-1, 0, 0, 0, 1, 1, 2, 3, 4, 4, 7],
    "depth first": [-1, 0, 1, 2, 0, 4, 4, 0, 7, 8],
}


def random_probs(nodes: int, seed: int, sharp: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(sharp * torch.randn(ROWS, nodes, VOCAB, generator=generator), -1)


def proposals(kind: str, units: Tensor) -> Distribution:
    probs = random_probs(units.shape[1], 2)
    probs = probs.scatter(-1, units[..., None], 0.3)
    dense = Categorical(probs / probs.sum(-1, keepdim=True))
    if kind == "dense":
        return dense
    if kind == "sparse":
        top = Categorical.top(dense, 5)
        ids = torch.cat([top.ids[..., :4], units[..., None]], -1)  # type: ignore[index]
        return Categorical(top.probs, ids, VOCAB)
    points = PointMass(units)
    return points if kind == "points" else Mixed(dense, units % 2 == 0, units)


def case(parents: list[int] | None, kind: str, seed: int) -> tuple[Draft, Scores, Round]:
    generator = torch.Generator().manual_seed(seed)
    if parents is None:  # every row has a tree of its own
        parent = torch.cat([torch.full((ROWS, 1), -1), torch.zeros(ROWS, 1).long()], 1)
        for node in range(2, 9):
            parent = torch.cat([parent, torch.randint(0, node, (ROWS, 1), generator=generator)], 1)
        index = TreeIndex.dynamic(parent)
    else:
        index = TreeIndex.static(parents)
    units = torch.randint(0, 5, (ROWS, index.nodes), generator=generator)  # equal siblings occur
    valid = torch.rand(ROWS, index.nodes, generator=generator) < 0.85
    valid[:, 0] = True
    draft = Draft(units, index, valid, proposals(kind, units[:, 1:]))
    distribution = Categorical(random_probs(index.nodes, seed + 1))
    source = PhiloxSource.seeded(seed, ROWS)
    return draft, Scores(distribution, distribution.finite()), Round(source, torch.full((ROWS,), 4), [4] * ROWS)


@pytest.mark.parametrize("kind", ["dense", "sparse", "points", "mixed"])
@pytest.mark.parametrize("tree", [*TREES, "own"])
def test_recursive_rejection_walks_as_if_all_nodes_were_decided_at_once(tree: str, kind: str) -> None:
    lengths = set[int]()
    for seed in range(4):
        draft, scores, round = case(TREES.get(tree), kind, seed)
        verdict = RecursiveRejection().accept(draft, scores, round)
        edge, drawn = at_every_node(draft, scores, round)
        right = walk_where(draft, edge, drawn)
        assert torch.equal(verdict.path, right.path) and torch.equal(verdict.length, right.length)
        assert torch.equal(verdict.unit, right.unit)
        on_path = verdict.emitted(verdict.length + 1)
        assert torch.equal(verdict.drawn[on_path], right.drawn[on_path])
        lengths |= set(verdict.length.tolist())
    assert len(lengths) > 1 and (kind == "points" or max(lengths) > 0)


def block_at_once(draft: Draft, scores: Scores, round: Round) -> tuple[Tensor, Tensor]:
    """Where block verification stops, and the unit drawn there, with residuals of all nodes."""
    p, noise = scores.distribution.probs, round.fresh(draft.nodes)  # type: ignore[attr-defined]
    q, follows = dense(draft.distribution, draft.drafted, VOCAB), draft.valid[:, 1:]
    x = draft.drafted[..., None]
    total = (p[:, :-1].gather(-1, x) / q.gather(-1, x))[..., 0].log().cumsum(1)
    weight = torch.nn.functional.pad((total - total.clamp(min=0).cummax(1).values).exp(), (1, 0), value=1.0)
    residual = (weight[:, :-1, None] * p[:, :-1] - q).clamp(min=0)
    s = residual.sum(-1)
    inner = s / (s + 1 - weight[:, :-1]).clamp(min=torch.finfo(s.dtype).tiny)
    h = torch.cat([torch.where(follows, inner, weight[:, :-1]), weight[:, -1:]], 1)
    stops = (noise.substream(Substream.COIN).uniform() <= h) & draft.valid
    stops[:, 0] = True
    leaf = torch.where(stops, torch.arange(draft.nodes), 0).amax(1)
    weights = torch.cat([torch.where((follows & (s > 0))[..., None], residual, p[:, :-1]), p[:, -1:]], 1)
    drawn = Categorical(weights).draw(noise.substream(Substream.RESIDUAL))
    return leaf, drawn.gather(1, leaf[:, None])[:, 0]


def rejection_at_once(draft: Draft, scores: Scores, round: Round) -> Tensor:
    """The coupled redraw at every node of a chain."""
    free, last = scores.distribution.draw(round.fresh(draft.nodes)), draft.nodes - 1
    parents = scores.distribution.take(draft.index.parent[:, 1:])
    coupled = couple(parents, draft.distribution, draft.drafted, round.fresh(last))
    return torch.cat([torch.where(draft.valid[:, 1:], coupled, free[:, :last]), free[:, last:]], 1)


@pytest.mark.parametrize("numbers", [1, 2 * ROWS * VOCAB, 2**22])  # one node, two nodes, all nodes at a time
@pytest.mark.parametrize("kind", ["dense", "sparse", "points", "mixed"])
def test_chains_are_decided_in_parts_as_at_once(kind: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "NUMBERS", numbers)
    lengths = set[int]()
    for seed in range(3):
        draft, scores, round = case(TREES["chain"], kind, seed)
        # Behind an invalid node of a chain there is no valid one.
        draft = replace(draft, valid=draft.valid.long().cumprod(1).bool() | (seed == 0))
        verdict = Block().accept(draft, scores, round)
        leaf, unit = block_at_once(draft, scores, round)
        assert torch.equal(verdict.length, leaf) and torch.equal(verdict.unit, unit)
        lengths |= set(leaf.tolist())
        assert torch.equal(Rejection().accept(draft, scores, round).drawn, rejection_at_once(draft, scores, round))
    assert len(lengths) > 1


class Traffic(TorchDispatchMode):
    """Bytes that operations on meta tensors read and write, and the most that their results hold at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}  # tensors of every storage
        self.now = self.peak = self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_flatten((args, kwargs or {}))[0] if isinstance(t, Tensor)]
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
        known = {t.untyped_storage()._cdata for t in given}
        if any(t.untyped_storage()._cdata not in known for t in made) or str(func).endswith("_.default"):  # no view
            read = given[1:] if func._schema.name in ("aten::gather", "aten::index_select") else given
            self.moved += sum(self._bytes(t) for t in [*read, *made])
        for t in made:
            storage = t.untyped_storage()
            if storage._cdata in self.live or storage._cdata not in known:
                self._hold(t, storage._cdata, storage.nbytes())
        return out

    @staticmethod
    def _bytes(t: Tensor) -> int:
        return t.element_size() * int(
            torch.Size(n for n, step in zip(t.shape, t.stride(), strict=True) if step).numel()
        )

    def _hold(self, tensor: Tensor, storage: int, size: int) -> None:
        if storage not in self.live:
            self.live[storage] = 0
            self.now += size
            self.peak = max(self.peak, self.now)
        self.live[storage] += 1
        weakref.finalize(tensor, self._drop, storage, size)

    def _drop(self, storage: int, size: int) -> None:
        self.live[storage] -= 1
        if not self.live[storage]:
            del self.live[storage]
            self.now -= size


def weight_of(rule: Any, rows: int, parents: list[int], vocab: int = 128_256) -> Traffic:
    """Bytes of a round of a rule at a large model's vocabulary, probabilities and proposals given."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    index, nodes = TreeIndex.static(parents), len(parents)
    tensors = {name: getattr(index, name).to("meta") for name in ("parent", "depth", "ancestor", "rank")}
    index = replace(index, **tensors)
    q = Categorical(empty(rows, nodes - 1, vocab))
    draft = Draft(empty(rows, nodes, dtype=torch.int64), index, empty(rows, nodes, dtype=torch.bool), q)
    scores = Scores(Categorical(empty(rows, nodes, vocab)), empty(rows, nodes, dtype=torch.bool))
    emitted = empty(rows, dtype=torch.int64)
    round = Round(PhiloxSource(empty(rows, 2, dtype=torch.int64)), emitted, [5] * rows)
    with Traffic() as traffic:
        rule.accept(draft, scores, round)
    return traffic


TREE = [-1, *((node - 1) // 4 for node in range(1, 64))]
SHORT, LONG = list(range(-1, 8)), list(range(-1, 63))


@pytest.mark.parametrize(
    ("rule", "parents", "moved", "peak"),
    [
        (Match(), [-1], 0.52e9, 0.02e9),
        (Match(), SHORT, 4.2e9, 0.17e9),
        (Match(), TREE, 3.2e9, 0.53e9),
        (Rejection(), SHORT, 4.8e9, 0.15e9),
        (Rejection(), LONG, 35e9, 0.15e9),
        (Block(), SHORT, 0.85e9, 0.04e9),
        (Block(), LONG, 2.7e9, 0.04e9),
        (RecursiveRejection(), TREE, 1.3e9, 0.03e9),
    ],
)
def test_rules_hold_and_move_little_over_a_large_vocabulary(
    rule: Any, parents: list[int], moved: float, peak: float
) -> None:
    """Bytes of 8 rows; who makes a rule cheaper writes the new number. Most of them are those of the random numbers."""
    traffic = weight_of(rule, 8, parents)
    assert traffic.moved <= moved and traffic.peak <= peak, (traffic.moved / 1e9, traffic.peak / 1e9)


@pytest.mark.parametrize(
    ("parents", "steps"), [([-1], 0), (SHORT, 8), (TREES["siblings"], 4), (TREES["levels"], 5), (TREE, 10)]
)
def test_recursive_rejection_takes_the_steps_of_the_longest_walk(parents: list[int], steps: int) -> None:
    """In "levels" past two siblings to node 3, then to nodes 7 and 10: five children are tried."""
    assert _longest_walk(TreeIndex.static(parents)) == steps


@pytest.mark.parametrize("current", [Substream.UNIT, Substream.DRAFT])
def test_noise_of_several_substreams_is_theirs(current: Substream) -> None:
    source, emitted = PhiloxSource.seeded(3, 4), torch.arange(4)
    mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    index, ids = torch.tensor([[4, 0, 0]]), torch.tensor([[[1, 7], [2, 3], [0, 9]]]).expand(4, -1, -1)
    positions = source.by_position(emitted, [0, 1, 2, 3], 4)
    tree = SpreadNoise(source.by_position(emitted, [0, 1, 2, 3], 1), torch.tensor([[0, 1, 1, 0, 1]]))
    for noise in (source.fresh(emitted, 0, 5), positions, tree):
        noise = noise.substream(current)
        other = noise.substream(Substream.RESIDUAL)
        both = noise.where(mask, Substream.RESIDUAL)
        expected = torch.where(mask[..., None], other.exponential(11), noise.exponential(11))
        assert torch.equal(both.exponential(11), expected)
        there = mask.gather(1, index.expand(4, -1))[..., None]
        expected = torch.where(there, other.at(index).exponential_at(ids), noise.at(index).exponential_at(ids))
        assert torch.equal(both.at(index).exponential_at(ids), expected)
