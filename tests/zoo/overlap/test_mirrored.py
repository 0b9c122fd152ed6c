"""Drafting for what an early exit says: by hand, in any interleaving, and on the paper's clock."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_zoo.overlap.executors import Serial
from mmspec_zoo.overlap.mirror_sd import Mirrored
from mmspec_zoo.overlap.outcomes import Even, Outcomes
from tests.support.simulated import Simulated
from tests.zoo.overlap.test_outcomes import ranked
from tests.zoo.overlap.test_overlap import ALONE, COSTS, LARGE, RAGGED, SMALL, interleavings, same

GREEDY = Warp.sampling(temperature=0)


class Says:
    """A target whose passes begin with what another one thinks."""

    def __init__(self, early):
        self.early, self.ear = early, None

    def once(self, hear):
        self.ear = hear
        return lambda: setattr(self, "ear", None)

    def tell(self, cache, draft, first):
        if self.ear is not None:
            hear, self.ear = self.ear, None
            hear(self.early.verify(cache, draft, first).logits)


def saying(target, early):
    """`target` with an early exit, and a drafter that hears it."""
    says = Says(early)

    class Saying(type(target)):
        def verify(self, cache, draft, first=0):
            says.tell(cache, draft, first)
            return super().verify(cache, draft, first)

    class Hearing(Mirrored):
        def exit_of(self, target):
            return says

    return Saying(target.table), Hearing


def counting(wrong):
    table = torch.zeros(7, 7, 7)
    for unit in range(7):
        table[:, unit, wrong.get(unit, (unit + 1) % 7)] = 9.0
    return MarkovTarget(table)


def rounds(decoder, prompt, count):
    state = decoder.start(torch.tensor([prompt]), 20, warp=GREEDY)
    drafts, emitted = [], []
    for _ in range(count):
        before = state.host.emitted[0]
        decoder.advance(state)
        drafts.append(state.step.draft.drafted[0].tolist())
        emitted.append(state.history[0, 2 + before : 2 + state.host.emitted[0]].tolist())
    assert not state.report.faults
    return drafts, emitted


def test_three_rounds_by_hand():
    """The target counts 0, 1, … 6, 0, …, and so does its exit, which says 1 after 5; the draft model says 0 after 3.

    The prefill emits 1, and the first draft is waited for: 2, 3, 0. The exit says 2 | 3 | 4 | 1 behind 1, 2, 3, 0. So
    the draft model goes on from (all accepted, then 1), from (2 accepted, then 4): 5, 6; and from a second choice
    behind 1 and 2, where the exit agrees with the draft. The target takes 2, 3 and says 4, so that 5, 6 are there at
    once. Of these the exit says 5 | 1 | 0: (all, then 0), (1 accepted, then 1). All are accepted, 0 comes, and 1, 2 are
    there.
    """
    target, hearing = saying(counting({}), counting({5: 1}))
    drafts, emitted = rounds(Decoder(target, hearing(counting({3: 0}), branches=1), k=3), [6, 0], 3)
    assert drafts == [[2, 3, 0], [5, 6], [1, 2]]
    assert emitted == [[2, 3, 4], [5, 6, 0], [1, 2, 3]]


def test_a_wrong_exit_is_waited_for():
    """It says 0 always, so that no outcome is prepared for, and every row waits for the draft model."""
    target, hearing = saying(counting({}), counting(dict.fromkeys(range(7), 0)))
    drafts, _ = rounds(Decoder(target, hearing(counting({3: 0}), branches=1), k=3), [6, 0], 2)
    assert drafts == [[2, 3, 0], [5, 6, 0]]


def test_the_same_number_of_outcomes_after_every_length():
    """κ = 2 of three nodes, by hand: all accepted and 7 or 8; two refusals of each of the two units."""
    outcomes = Outcomes.chosen(ranked(), 6, Even())
    found = list(zip(outcomes.accepted[0].tolist(), outcomes.unit[0].tolist(), strict=True))
    assert found[0] == (2, 7)
    assert sorted(found[1:]) == [(0, 1), (0, 2), (1, 3), (1, 4), (2, 8)]


def decoded(top, early=SMALL, small=SMALL, executor=None, k=3, limit=24, inputs=RAGGED, **options):
    target, hearing = saying(LARGE, early)
    drafter = hearing(small, executor, top)
    output = Decoder(target, drafter, k=k).generate(inputs, limit, seed=1, **options)
    assert not output.report.faults, output.report.faults
    return output


@pytest.mark.parametrize("warp", [GREEDY, Warp.sampling(), Warp.sampling(temperature=0.7, top_k=2)])
def test_the_output_depends_on_neither_the_exit_nor_its_units(warp):
    plain = Decoder(LARGE).generate(RAGGED, 24, seed=1, warp=warp).units
    for early in (LARGE, SMALL, HistoryTarget.random(3, 99, sharpness=4.0)):
        for top in (1, 2, 3):
            assert same(plain, decoded(top, early, warp=warp).units)


def mirrored(small, executor, order):
    target, hearing = saying(LARGE, (LARGE, SMALL)[order % 2])
    drafter = hearing(small, executor, 1 + order % 3, on_miss=("draft", "plain")[order // 2 % 2])
    return target, drafter


def test_any_interleaving_gives_plains_output():
    assert interleavings((0, 1), 8, mirrored) > 5


@pytest.mark.slow
def test_a_hundred_interleavings_give_plains_output():
    assert interleavings((0, 1, 2), 100, mirrored) > 300


class Counted(Serial):
    """Counts the drafts that were waited for."""

    waited = 0

    def open(self, model, how):
        lane = super().open(model, how)
        submit = lane.submit

        def counting_submit(request):
            self.waited += request.ranked is None
            submit(request)

        lane.submit = counting_submit
        return lane


def test_every_round_hits_where_all_units_are_prepared_for():
    executor = Counted()
    decoded(3, executor=executor, inputs=ALONE, limit=30)
    assert executor.waited == 1  # the first draft
    executor = Counted()
    decoded(1, HistoryTarget.random(3, 99, sharpness=4.0), executor=executor, inputs=ALONE, limit=30)
    assert executor.waited > 3


@pytest.mark.parametrize("draft, verify, early", [(1.0, 2.5, 0.5), (1.0, 9.0, 4.0), (0.5, 2.0, 1.9)])
def test_a_round_takes_the_papers_time(draft, verify, early):
    """t_e + max(t_v - t_e, γ · t_d), and γ · t_d once for the first draft."""
    executor, k = Simulated(replace(COSTS, draft=draft, verify=verify, early=early), 1), 4
    target, hearing = saying(LARGE, SMALL)
    decoder = Decoder(target, hearing(SMALL, executor, 3), k=k)
    rounds = 0
    for state in decoder.rounds(ALONE, 60, seed=1):
        if state.report.rounds and state.most_room >= 2 * k:
            rounds = state.report.rounds
            expected = k * draft + rounds * (early + max(verify - early, k * draft))
            assert executor.seconds == pytest.approx(expected, rel=0.01)
    assert rounds > 8


def test_an_error_in_the_middle_of_a_pass_ends_drafts_and_not_the_call():
    target, hearing = saying(LARGE, SMALL)
    drafter = hearing(SMALL)
    decoder = Decoder(target, drafter, k=3)
    drafter.fan = None
    with pytest.warns(UserWarning, match="failed"):
        output = decoder.generate(RAGGED, 24, seed=1)
    assert same(output.units, Decoder(LARGE).generate(RAGGED, 24, seed=1).units) and output.report.faults
