"""Drafting while the target verifies: the output is plain's in any interleaving, and the clock is PEARL's formula."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Rejection
from mmspec.core.torch_noise import TorchSource
from mmspec.core.warp import Warp
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_zoo.overlap.overlapped import Overlapped
from tests.support.simulated import Costs, Faults, Simulated

LARGE = HistoryTarget.random(3, seed=3)
SMALL = LARGE.near(4)
RAGGED = (torch.tensor([[0, 0, 1, 2], [2, 1, 1, 0], [0, 0, 0, 2]]), torch.tensor([1, 0, 3]))
ALONE = torch.tensor([[2, 1, 1, 0]])
COSTS = Costs(draft=1.0, verify=2.5)
ASTRAY = Faults(late=0.2, doubled=0.2, lost=0.1, dropped=0.1)


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def decoded(small, executor, k=3, inputs=RAGGED, limit=24, seed=1, **options):
    output = Decoder(LARGE, Overlapped(small, executor), k=k).generate(inputs, limit, seed=seed, **options)
    assert not output.report.faults, output.report.faults
    return output


def interleavings(seeds, count, made=lambda small, executor, order: (LARGE, Overlapped(small, executor))):
    """Equality with plain decoding; returns how many answers were thrown away."""
    thrown = 0
    for seed in seeds:
        plain = Decoder(LARGE).generate(RAGGED, 24, seed=seed, ends=2 if seed == 1 else None).units
        for order in range(count):
            small = (SMALL, LARGE, HistoryTarget.random(3, 99, sharpness=4.0))[order % 3]
            executor = Simulated(COSTS, order, ASTRAY if order % 4 else Faults())
            decoder = Decoder(*made(small, executor, order), k=1 + order % 5)
            state = decoder.start(RAGGED, 24, seed=seed, ends=2 if seed == 1 else None)
            while not state.finished:
                decoder.advance(state)
            assert same(plain, state.output()) and not state.report.faults, (seed, order)
            thrown += state.memory.discarded
    return thrown


def test_any_interleaving_gives_plains_output():
    assert interleavings(seeds=(0, 1), count=8) > 5


def masked(small, executor, order):
    """Drafts of which all units of a request are read at masks; to the output it is all one what stands there."""
    drafter = Overlapped(small, executor, branches=1 + order % 3, on_miss=("draft", "plain")[order // 2 % 2])
    drafter.mask = order % 3
    return LARGE, drafter


def test_any_interleaving_of_drafts_at_masks_gives_plains_output():
    assert interleavings((0, 1), 12, masked) > 5


@pytest.mark.slow
def test_a_hundred_interleavings_give_plains_output():
    assert interleavings(seeds=(0, 1, 2), count=100) > 300


def test_every_round_hits_where_the_draft_model_is_the_target():
    for inputs in (ALONE, RAGGED):
        report = decoded(LARGE, Simulated(COSTS, 5), k=4, inputs=inputs, limit=30).report
        # The prefill emits 1 unit and pre-verify 1, then each round emits 4: 1 + 1 + 7 * 4 = 30.
        assert report.rounds == 8 and report.accepted == report.drafted > 0


@pytest.mark.parametrize("costs", [Costs(1.0, 2.5), Costs(1.0, 9.0), Costs(0.5, 2.0)])
def test_a_round_takes_the_longer_of_drafting_and_verifying(costs):
    for seed in range(3):
        executor, k = Simulated(costs, seed), 4
        decoder = Decoder(LARGE, Overlapped(SMALL, executor), k=k)
        rounds = 0
        for state in decoder.rounds(ALONE, 60, seed=seed):
            if state.report.rounds and state.most_room >= 2 * k:  # the end of a call asks for less
                rounds = state.report.rounds
                assert executor.seconds == pytest.approx(rounds * max(k * costs.draft, costs.verify), rel=0.01)
        assert rounds > 10


def test_nothing_changes_when_answers_never_come():
    report = decoded(SMALL, Simulated(COSTS, 0, Faults(lost=1.0))).report
    assert report.drafted == 0 and report.rounds == 23
    never_runs = decoded(SMALL, Simulated(COSTS, 0, Faults(dropped=1.0)))
    assert same(never_runs.units, Decoder(LARGE).generate(RAGGED, 24, seed=1).units)


def test_a_worker_that_missed_requests_catches_up():
    """The draft model is the target, and half of its jobs never ran: what it does answer is right."""
    output = decoded(LARGE, Simulated(COSTS, 3, Faults(dropped=0.6)), k=2, limit=90)
    assert output.report.accepted == output.report.drafted > 10
    assert same(output.units, Decoder(LARGE).generate(RAGGED, 90, seed=1).units)


@pytest.mark.parametrize("warp", [Warp.sampling(temperature=0), Warp.sampling(temperature=0.7, top_k=2)])
def test_warps_and_stock_noise(warp):
    for executor in (None, Simulated(COSTS, 2, ASTRAY)):
        plain = Decoder(LARGE).generate(RAGGED, 24, seed=1, warp=warp)
        assert same(plain.units, decoded(SMALL, executor, warp=warp).units)
    ends = []
    for drafter in (None, Overlapped(SMALL, Simulated(COSTS, 4, ASTRAY))):
        torch.manual_seed(5)
        source = TorchSource(torch.default_generator, 3, torch.device("cpu"))
        units = Decoder(LARGE, drafter, k=3).generate(RAGGED, 24, source=source, warp=warp).units
        ends.append((units, torch.rand(1)))
    assert same(ends[0][0], ends[1][0]) and ends[0][1] == ends[1][1]


def test_two_rounds_by_hand():
    """The target counts 0, 1, … 6, 0, …; the draft model counts alike, but says 0 after 3. γ = 3, greedy.

    The prefill emits 1. Pre-verify: the target's pass gives 2; meanwhile 2, 3, 0 are drafted, so that 3, 0 remain.
    Post-verify: the target takes 3 and says 4, not 0; what was drafted behind 0 is thrown away, and pre-verify follows:
    it gives 5, and 5, 6, 0 were drafted behind 4.
    """

    def counting(wrong):
        table = torch.zeros(7, 7, 7)
        for unit in range(7):
            table[:, unit, wrong.get(unit, (unit + 1) % 7)] = 9.0
        return MarkovTarget(table)

    decoder = Decoder(counting({}), Overlapped(counting({3: 0})), k=3)
    state = decoder.start(torch.tensor([[6, 0]]), 20, warp=Warp.sampling(temperature=0))
    drafts, emitted = [], [state.history[0, 2 : 2 + state.host.emitted[0]].tolist()]
    for _ in range(4):
        before = state.host.emitted[0]
        decoder.advance(state)
        drafts.append(state.step.draft.drafted[0].tolist())
        emitted.append(state.history[0, 2 + before : 2 + state.host.emitted[0]].tolist())
    assert drafts == [[], [3, 0], [], [6, 0]]
    assert emitted == [[1], [2], [3, 4], [5], [6, 0, 1]]


def test_rules_with_ratios_are_refused():
    with pytest.raises(ValueError, match="rerank"):
        Decoder(LARGE, Overlapped(SMALL), Rejection())
