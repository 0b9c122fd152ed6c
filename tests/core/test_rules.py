"""The rules' distributions given a draft, against slow references that enumerate every coin."""

import random

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, PointMass
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Synthetic, SyntheticOptions
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.toys.history import HistoryTarget

ROWS, VOCAB = 30_000, 4


def distributions(nodes: int, seed: int) -> torch.Tensor:
    """Random distributions `[nodes, vocab]` float64."""
    alpha = torch.full((nodes, VOCAB), 0.7, dtype=torch.float64)
    torch.manual_seed(seed)
    return torch.distributions.Dirichlet(alpha).sample()


def slow_recursive(p, q, units, parents, valid):
    """P(stopping node, emitted unit) of a tree: siblings in turn, then the residual."""
    result = torch.zeros(len(units), VOCAB, dtype=torch.float64)

    def visit(node: int, reach: float) -> None:
        rest = p[node].clone()
        for child in [c for c in range(1, len(units)) if parents[c] == node and valid[c]]:
            x, distribution = units[child], q[child - 1]
            kept = min(1.0, float(rest[x] / distribution[x]))
            visit(child, reach * kept)
            reach *= 1 - kept
            left = (rest - distribution).clamp(min=0)
            if left.sum() > 1e-12:
                rest = left / left.sum()
        result[node] += reach * rest

    visit(0, 1.0)
    return result


def slow_block(p, q, units, valid):
    """P(stopping node, emitted unit) of a chain under block verification: the last coin that falls decides."""
    last = max(i for i in range(len(units)) if all(valid[: i + 1]))
    weight, falls = [1.0], [1.0]
    residuals = []
    for i in range(last + 1):
        if i:
            weight.append(min(1.0, weight[-1] * float(p[i - 1, units[i]] / q[i - 1, units[i]])))
        left = (weight[i] * p[i] - q[i]).clamp(min=0) if i < last else p[i]
        s = float(left.sum())
        residuals.append(left / s if s > 0 else p[i])
        if i:
            falls.append(weight[i] if i == last else s / (s + 1 - weight[i]) if s + 1 - weight[i] > 0 else 1.0)
    result = torch.zeros(len(units), VOCAB, dtype=torch.float64)
    beyond = 1.0
    for i in range(last, -1, -1):
        result[i] = beyond * falls[i] * residuals[i]
        beyond *= 1 - falls[i]
    return result


def decided(rule, p, q, units, parents, valid, seed) -> torch.Tensor:
    """(stopping node, emitted unit) of every row, `[rows, 2]`, for one draft and many noises."""
    index = TreeIndex.static(parents)
    distribution = None if q is None else Categorical(q.float().expand(ROWS, -1, -1))
    draft = Draft(torch.tensor(units).expand(ROWS, -1), index, torch.tensor(valid).expand(ROWS, -1), distribution)
    p = Categorical(p.float().expand(ROWS, -1, -1))
    at = Round(PhiloxSource.seeded(seed, ROWS), torch.zeros(ROWS, dtype=torch.int64), [0] * ROWS)
    verdict = rule.accept(draft, Scores(p, p.finite()), at)
    path = torch.cat([torch.zeros(ROWS, 1, dtype=torch.int64), verdict.path], 1)
    return torch.stack([path.gather(1, verdict.length[:, None])[:, 0], verdict.unit], 1)


def chain(p: torch.Tensor, seed: int, nodes: int = 4):
    """Units that q could draw; in odd seeds one that p likes more, one that it likes less, and a refused last node."""
    q = distributions(nodes - 1, seed + 100)
    units = [0] + [int(torch.multinomial(distribution, 1)) for distribution in q]
    if seed % 2:
        ratio = p[:-1] / q
        units[1:3] = int(ratio[0].argmax()), int(torch.where(ratio[1] > 0.05, ratio[1], 9).argmin())
    return q, units, list(range(-1, nodes - 1)), [True] * (nodes - 1) + [seed % 2 == 0]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", [Rejection(), RecursiveRejection(), Block()])
def test_chains(rule, seed):
    p = distributions(4, seed)
    q, units, parents, valid = chain(p, seed)
    if isinstance(rule, Block):
        expected = slow_block(p, q, units, valid)
    else:
        expected = slow_recursive(p, q, units, parents, valid)
    assert abs(expected.sum() - 1) < 1e-9
    assert joint_p_value(decided(rule, p, q, units, parents, valid, seed), expected) > 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_trees_of_sampled_siblings(seed):
    """Without replacement in even cases, with it (and with equal siblings) in odd ones; one node refused at random."""
    rng, parents = random.Random(seed), [-1, 0, 0, 1, 1, 2, 0]
    p, base = distributions(7, seed), distributions(7, seed + 50)
    units, q = [0], []
    for node in range(1, 7):
        distribution = base[parents[node]].clone()
        if seed % 2 == 0:
            distribution[[units[i] for i in range(1, node) if parents[i] == parents[node]]] = 0
            distribution /= distribution.sum()
        q.append(distribution)
        units.append(int(torch.multinomial(distribution, 1)))
    if seed % 2:
        units[2], q[1] = units[1], q[0]
    valid = [True] * 7
    valid[rng.choice([3, 4, 5])] = False
    expected = slow_recursive(p, q, units, parents, valid)
    rows = decided(RecursiveRejection(), p, torch.stack(q), units, parents, valid, seed)
    assert joint_p_value(rows, expected) > 1e-4


def test_equal_siblings_that_are_point_masses():
    """Two equal siblings with a child each: one draw decides at both, so the path is not the better of two."""
    p, parents, units = distributions(5, 1), [-1, 0, 0, 1, 2], [0, 2, 2, 1, 3]
    p[2] = p[1]  # one path, one distribution
    expected = torch.zeros(5, VOCAB, dtype=torch.float64)
    expected[0] = torch.where(torch.arange(VOCAB) == 2, 0, p[0])
    expected[1] = p[0, 2] * torch.where((torch.arange(VOCAB) == 1) | (torch.arange(VOCAB) == 3), 0, p[1])
    expected[3], expected[4] = p[0, 2] * p[1, 1] * p[3], p[0, 2] * p[1, 3] * p[4]
    for rule in (Match(), RecursiveRejection()):
        rows = decided(rule, p, None, units, parents, [True] * 5, 0)
        rows[:, 0] = torch.where(rows[:, 0] == 2, 1, rows[:, 0])  # which of the equal two stands is nobody's business
        assert joint_p_value(rows, expected) > 1e-4, rule


@pytest.mark.parametrize("rule", [Match(), Rejection(), RecursiveRejection(), Block()])
def test_no_draft_is_a_draw_from_p(rule):
    p = distributions(1, 3)
    rows = decided(rule, p, None, [0], [-1], [True], 0)
    assert joint_p_value(rows[:, 1:], p[0]) > 1e-4 and (rows[:, 0] == 0).all()


@pytest.mark.parametrize("rule", [Match(), Rejection(), RecursiveRejection(), Block()])
def test_greedy_follows_the_likeliest(rule):
    draft = Draft(torch.tensor([[0, 2, 1, 3]] * 2), TreeIndex.chain(4), torch.ones(2, 4, dtype=torch.bool))
    distribution = PointMass(torch.tensor([[2, 1, 0, 0], [1, 1, 3, 0]]))
    at = Round(PhiloxSource.seeded(0, 2), torch.zeros(2, dtype=torch.int64), [0, 0])
    for q in (None, PointMass(draft.drafted), Categorical(torch.full((2, 3, VOCAB), 0.25))):
        verdict = rule.accept(
            Draft(draft.units, draft.index, draft.valid, q), Scores(distribution, distribution.finite()), at
        )
        assert verdict.length.tolist() == [2, 0] and verdict.unit.tolist() == [0, 1]
        assert verdict.path.tolist() == [[1, 2, -1], [-1, -1, -1]]


def test_block_is_longer_than_rejection():
    large = HistoryTarget.random(3, seed=3)
    prompt = torch.tensor([[0, 1]]).expand(10_000, -1)
    rejection, block = (
        Decoder(large, DraftModel(large.near(4)), rule, k=4).generate(prompt, 6).report.acceptance_length
        for rule in (Rejection(), Block())
    )
    assert block > rejection + 0.02  # about 0.05; the noise of 10,000 rows is below 0.01


def test_synthetic_accepts_at_its_rate():
    p = distributions(4, 0)
    q, units, parents, _ = chain(p, 0)
    rate = 0.6
    rows = decided(Synthetic(SyntheticOptions(rate=rate)), p, q, units, parents, [True] * 4, 0)
    stops = torch.tensor([rate**i * (1 - rate) for i in range(3)] + [rate**3])
    assert joint_p_value(rows[:, :1], stops) > 1e-4
