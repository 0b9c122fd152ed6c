"""Outcomes of a pending round: which are drafted for, by hand, and that a hit is what the fans promise."""

from itertools import product

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_zoo.overlap.outcomes import Geometric, Margin, Outcomes, Ranked
from mmspec_zoo.overlap.overlapped import Overlapped
from tests.support.simulated import Simulated
from tests.zoo.overlap.test_overlap import ALONE, COSTS, LARGE, RAGGED, SMALL, interleavings


def ranked():
    """Two units of a draft are pending, 5 and 6; in the second row, only the first of them."""
    probability = torch.tensor([[0.9, 0.08, 0.02], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    units = torch.tensor([[5, 1, 2], [6, 3, 4], [7, 8, 9]]).expand(2, 3, 3)
    return Ranked(units, probability.log().expand(2, 3, 3), torch.tensor([[5, 6], [5, 0]]), torch.tensor([2, 1]))


def chosen(fan, branches):
    outcomes = Outcomes.chosen(ranked(), branches, fan)
    return [
        [(j, u) for j, u, valid in zip(*row, strict=True) if valid]
        for row in zip(outcomes.accepted.tolist(), outcomes.unit.tolist(), outcomes.valid.tolist(), strict=True)
    ]


def test_the_likeliest_outcomes_by_hand():
    """Row 0: 0.9 · 0.3 is more than 0.9 · 0.6 · 0.4, than 0.9 · 0.1, than 0.08. Row 1: 0.9 · 0.3, 0.9 · 0.1, 0.08."""
    assert chosen(Margin(), 5) == [[(2, 7), (1, 3), (2, 8), (1, 4), (0, 1)], [(1, 6), (1, 3), (1, 4), (0, 1), (0, 2)]]
    assert chosen(Margin(), 1) == [[(2, 7)], [(1, 6)]]
    assert len(chosen(Margin(), 30)[0]) == 7 and len(chosen(Margin(), 30)[1]) == 5  # all there are


def test_the_geometric_fan_by_hand():
    """a = 0.5, r = 1: P = 0.5, 0.25, 0.25. The F-th outcome after a length adds P (1 / F - 1 / (F + 1)) to the hits."""
    assert chosen(Geometric(0.5, 1.0), 4)[0] == [(2, 7), (0, 1), (1, 3), (0, 2)]  # 0.25, 0.125, 0.083
    fewer = Geometric(0.05, 1.0)  # hardly anything is accepted: all others are rejections of the first unit
    assert chosen(fewer, 3)[0] == [(2, 7), (0, 1), (0, 2)]


@pytest.mark.parametrize("acceptance, power", [(0.8, 1.0), (0.5, 0.5), (0.9, 2.0)])
def test_the_geometric_fan_has_the_most_hits(acceptance, power):
    """Brute force over all fan-outs that contain the first outcome: none hits more often."""
    drafted, budget = 3, 9
    chance = [acceptance**j * (1 - acceptance) for j in range(drafted)] + [acceptance**drafted]

    def rate(fan):
        return sum(p * (1 - (f + 1) ** -power) for p, f in zip(chance, fan, strict=True))

    units = torch.arange(4 * 20).reshape(1, 4, 20)
    score = torch.zeros(1, 4, 20)
    found = Outcomes.chosen(
        Ranked(units, score, units[:, :3, 0], torch.tensor([3])), budget, Geometric(acceptance, power)
    )
    fan = torch.bincount(found.accepted[0], minlength=4).tolist()
    best = max(rate(f) for f in product(range(budget + 1), repeat=4) if sum(f) == budget and f[-1])
    assert sum(fan) == budget and rate(fan) == pytest.approx(best, rel=1e-12) and len(set(fan)) > 1


def branching(small, executor, order):
    """Any fan, and either answer to a miss."""
    fan, on_miss = (Margin(), Geometric(0.6))[order % 2], ("plain", "draft")[order // 2 % 2]
    return LARGE, Overlapped(small, executor, 2 + order % 4, fan, on_miss)


def test_any_interleaving_gives_plains_output():
    assert interleavings((0, 1), 8, branching) > 5


@pytest.mark.slow
def test_a_hundred_interleavings_give_plains_output():
    assert interleavings((0, 1, 2), 100, branching) > 300


def report_of(branches, fan=None, on_miss="plain", inputs=ALONE, small=SMALL, **options):
    executor = Simulated(COSTS, 1)
    output = Decoder(LARGE, Overlapped(small, executor, branches, fan, on_miss), k=3).generate(
        inputs, 60, seed=2, **options
    )
    assert not output.report.faults
    return output.report, executor.seconds


@pytest.mark.parametrize("inputs", [ALONE, RAGGED])
@pytest.mark.parametrize("greedy", [False, True])
def test_every_round_hits_if_all_outcomes_are_drafted_for(inputs, greedy):
    """Three units, three drafted: 3 · 2 + 3 outcomes. After the first round every row has a draft of k - 1 units."""
    warp = Warp.sampling(temperature=0 if greedy else 1.0)
    report, _ = report_of(9, inputs=inputs, warp=warp, small=HistoryTarget.random(3, 77))
    rows = len(inputs[0]) if isinstance(inputs, tuple) else 1
    if rows == 1:
        assert report.drafted >= 2 * (report.rounds - 3)
    one, _ = report_of(1, inputs=inputs, warp=warp, small=HistoryTarget.random(3, 77))
    assert one.drafted < report.drafted and one.rounds > report.rounds


def test_more_outcomes_hit_more_often():
    hits = [report_of(branches)[0].drafted for branches in (1, 2, 4)]
    assert hits == sorted(set(hits))


def test_who_waits_after_a_miss_drafts_in_every_round_and_pays():
    """Rounds are those of a draft model whose drafts wait for verification; the clock adds k · t_d for each miss."""
    report, seconds = report_of(1, on_miss="draft")
    plain, _ = report_of(1)
    assert report.drafted > 2 * (report.rounds - 2) and report.rounds < plain.rounds
    full, free = report_of(9, on_miss="draft")
    # One wait, for the first draft; then all rounds take max(3 · 1, 2.5), the last ones less.
    assert full.rounds * 3.0 - 3 <= free <= 3 + full.rounds * 3.0 < seconds


def test_two_rounds_by_hand():
    """The target counts 0, 1, … 6, 0, …; the draft model says 0 after 3, and 4 is its second choice. γ = 3, greedy.

    As in `test_overlap`, but with two branches the second one begins with 4, and the wrong 0 is a hit: 5 and 6 follow.
    """

    def counting(wrong):
        table = torch.zeros(7, 7, 7)
        for unit in range(7):
            table[:, unit, (unit + 1) % 7] = 5.0
            table[:, unit, wrong.get(unit, (unit + 1) % 7)] += 6.0
        return MarkovTarget(table)

    decoder = Decoder(counting({}), Overlapped(counting({3: 0}), branches=2), k=3)
    state = decoder.start(torch.tensor([[6, 0]]), 20, warp=Warp.sampling(temperature=0))
    drafts, emitted = [], [state.history[0, 2 : 2 + state.host.emitted[0]].tolist()]
    for _ in range(3):
        before = state.host.emitted[0]
        decoder.advance(state)
        drafts.append(state.step.draft.drafted[0].tolist())
        emitted.append(state.history[0, 2 + before : 2 + state.host.emitted[0]].tolist())
    # Pre-verify: 2, 3, 0 are drafted, and 2 comes. While 3, 0 is verified, 1, 2, 3 are drafted behind it, and behind 3
    # the second branch: 4, 5, 6. The target takes 3 and says 4.
    assert drafts == [[], [3, 0], [5, 6]]
    assert emitted == [[1], [2], [3, 4], [5, 6, 0]]


@pytest.mark.parametrize("wrong", [dict(acceptance=0.0), dict(acceptance=1.0), dict(power=0.0)])
def test_numbers_of_no_fan_are_refused(wrong):
    with pytest.raises(ValueError, match="acceptance lies between 0 and 1"):
        Geometric(**wrong)


def test_no_branches_are_refused():
    with pytest.raises(ValueError, match="branches must be at least 1"):
        Overlapped(SMALL, branches=0)
