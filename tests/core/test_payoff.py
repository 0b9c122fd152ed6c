"""The policy `payoff`, on simulated rounds with given costs and acceptance; no clock is read."""

import math
import random

import pytest
import torch

from mmspec.core.payoff import FORGOTTEN, Payoff, PayoffOptions
from mmspec.core.types import Draft


def chain(*chances, rows=1):
    """A draft whose units are said to be right with these probabilities, where those before them were."""
    score = torch.tensor(chances).log().cumsum(0).expand(rows, -1)
    return Draft.chain(torch.zeros(score.shape, dtype=torch.long), score=score)


def depth_of(policy, draft):
    valid = policy.trim(draft).valid
    assert (valid == valid[:1]).all()
    return int(valid[0].sum())


def run(policy, drafts, cost, right=lambda chance: chance, rounds=200, rows=1, seed=0):
    """Rounds over `drafts`, in turns, each of which is a tuple of said chances; the depths that were verified."""
    rng, depths = random.Random(seed), []
    for n in range(rounds):
        chances = drafts[n % len(drafts)]
        depth = depth_of(policy, chain(*chances, rows=rows)) if chances else 0
        emitted = []
        for _ in range(rows):
            taken = 0
            while taken < depth and rng.random() < right(chances[taken]):
                taken += 1
            emitted.append(taken + 1)
        policy.observe(depth, emitted, cost(depth))
        depths.append(depth)
    return depths


SURE, UNSURE = (0.95,) * 8, (0.1,) * 8


def test_a_draft_is_cut_where_it_stops_to_pay():
    depths = run(Payoff(8), [SURE, UNSURE, (0.9, 0.9, 0.05, 0.9)], lambda d: 1 + 0.12 * d)
    assert depths[:2] == [0, 0], "plain rounds are timed first"
    assert set(depths[30::3]) == {8} and set(depths[31::3]) == {0} and set(depths[32::3]) == {2}


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.3, 0.7])
def test_finds_what_brute_force_finds(slope):
    chances = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)

    def payoff(depth):
        return (1 + sum(math.prod(chances[:d]) for d in range(1, depth + 1))) / (1 + slope * depth)

    depths = run(Payoff(6, PayoffOptions(gain=0)), [chances], lambda d: 1 + slope * d, rounds=400)
    best = max(payoff(d) for d in range(7))
    late = depths[200:]
    assert sum(payoff(d) for d in late) / len(late) > 0.93 * best


def test_what_is_dear_here_is_not_drafted():
    """A first node costs as much as a plain round: after a few tries only drafts that are sure stay."""
    depths = run(Payoff(8), [(0.5,) * 3, SURE], lambda d: 1 + (d > 0) * (0.8 + 0.02 * d))
    assert sum(d > 0 for d in depths[20:FORGOTTEN:2]) < 8 and set(depths[21:FORGOTTEN:2]) == {8}


def test_a_drafter_that_boasts_is_not_believed_for_long():
    depths = run(Payoff(8), [SURE], lambda d: 1 + 0.12 * d, right=lambda chance: 0.02, rounds=100)
    assert sum(d > 0 for d in depths) < 30 and any(depths[50:]), "and it is asked again later"


def test_a_disturbed_measurement_is_forgotten():
    """Another program took the machine while the first draft was verified."""
    policy = Payoff(8)
    for _ in range(4):
        depth = depth_of(policy, chain(*SURE))
        policy.observe(depth, [depth + 1], 50.0 if depth else 1.0)
    depths = run(policy, [SURE], lambda d: 1 + 0.1 * d, rounds=FORGOTTEN + 2)
    assert depths[0] == 0 and depths[-1] == 8


def test_without_scores_acceptance_alone_decides():
    policy, depths = Payoff(4), []
    for n in range(120):
        depth = int(policy.trim(Draft.chain(torch.zeros(1, 4, dtype=torch.long))).valid.sum())
        policy.observe(depth, [1 if n < 60 else depth + 1], 1 + 0.12 * depth)
        depths.append(depth)
    assert sum(depths[20:60]) < 30 and min(depths[110:]) >= 3


def test_a_batch_ends_with_its_last_row():
    """Half of the rows accept every draft, the other half none: drafting only makes the call longer."""

    def called(order):
        policy, depths = Payoff(8), []
        for _ in range(60):
            depth = depth_of(policy, chain(*SURE, rows=4))
            policy.observe(depth, order([1, 1, depth + 1, depth + 1]), 1 + 0.3 * depth)
            depths.append(depth)
        return sum(depths[30:]) / 30

    assert called(lambda emitted: emitted) < 2
    assert called(lambda emitted: emitted[::-1]) == 8
    assert called(lambda emitted: [*emitted[::-1], 0, 0, 0]) == 8, "rows that have ended are not asked"


def test_trees_are_left_whole():
    draft = Draft.tree(torch.zeros(1, 3, dtype=torch.long), [-1, -1, 0], score=torch.full((1, 3), -9.0))
    assert Payoff(3).trim(draft) is draft
