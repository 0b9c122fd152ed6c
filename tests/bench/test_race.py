"""Everybody in turns, warm-up not counted, and rows that can be recomputed from their raw repeats."""

import statistics

import pytest
import torch

from mmspec.bench.race import Run, Track, race, relay
from mmspec.bench.rows import peer_of, row_of
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.policies import Fixed
from mmspec.core.rules import Synthetic
from mmspec.core.rules.synthetic import SyntheticOptions
from mmspec.core.warp import Warp
from tests.support.cases import CASES
from tools.bench.stand_ins import Oracle, Parrot


def run(seconds, units, report=None):
    return Run(seconds, [torch.tensor(units)], report)


def test_everybody_runs_in_turns_and_the_first_changes_from_task_to_task():
    calls = []

    def contestant(name):
        def call(task):
            calls.append((name, task))
            return run(1.0, [1])

        return call

    ticks = []
    tracks = race({n: contestant(n) for n in "abc"}, [0, 1], 2, tick=lambda: ticks.append(1))
    assert len(calls) == len(ticks) == 3 * 2 * 3
    warm_up, counted = calls[:6], calls[6:12]
    assert [name for name, _ in warm_up] == list("abcabc"), "others may read what the first made"
    assert [name for name, _ in counted] == list("abcbca") and [task for _, task in counted] == [0, 0, 0, 1, 1, 1]
    assert tracks["b"].repeats_s == [2.0, 2.0]


def test_repeats_of_a_relay_have_tasks_of_their_own_and_all_of_them_count(case):
    calls = []

    def contestant(units):
        def call(task):
            calls.append(task)
            return run(float(task), units[task], decoded(case).report)

        return call

    same, own = {1: [1], 2: [2], 3: [3], 4: [4]}, {1: [1], 2: [9], 3: [9], 4: [9]}
    tracks = relay({"plain": contestant(same), "own": contestant(own)}, [[1, 2], [3, 4]], [1])
    assert calls == [1, 1, 1, 1, 2, 2, 3, 3, 4, 4] and tracks["own"].repeats_s == [3.0, 7.0]
    assert [int(made.units[0]) for made in tracks["own"].every] == [1, 9, 9, 9]
    row = row_of(tracks["own"], tracks["plain"], method="own", setting="toy", every=True)
    assert row.quality["same_as_plain"] == 1 / 4, "of the median repeat it would be half"
    assert row_of(tracks["own"], tracks["plain"], method="own", setting="toy").quality["same_as_plain"] == 1 / 2


def test_the_median_repeat_is_one_that_was_run():
    track = Track([[run(s, [1])] for s in (3.0, 1.0, 2.0, 9.0)])
    assert track.median[0].seconds == 2.0


def test_a_peer_that_cannot_run_is_out_with_its_reason_and_one_of_ours_is_not():
    def broken(task):
        raise RuntimeError("no compiler\nand more")

    fine = {"ours": lambda task: run(1.0, [1])}
    tracks = race({**fine, "theirs": broken}, [0], 2, optional={"theirs"})
    peer = peer_of(tracks["theirs"], "code, greedy")
    assert (peer.repeats_s, peer.note) == ([], "RuntimeError: no compiler")
    assert len(tracks["ours"].repeats_s) == 2
    with pytest.raises(RuntimeError, match="no compiler"):
        race({**fine, "theirs": broken}, [0], 2)


@pytest.fixture(scope="module")
def case():
    return CASES["markov"]()


def decoded(case, drafter=None, rule=None, **options):
    decoder = Decoder(case.target, drafter, rule, k=4, **options)
    output = decoder.generate(case.prompt(1), 21, seed=3, warp=Warp(sample=True))
    return Run(1.0, output.units, output.report)


def test_a_row_says_what_the_reports_and_the_raw_repeats_say(case):
    plain, own = Track([[decoded(case)]] * 3), Track([[decoded(case, HostDrafterAdapter(Parrot()))]] * 3)
    row = row_of(own, plain, method="parrot", setting="toy", quality={"distinct_3": 0.5}, options={"k": 4})
    report = own.runs[0][0].report
    assert row.units == 21 and row.target_passes == report.rounds and row.exactness == "invariant"
    assert row.acceptance_length == report.acceptance_length > 1
    assert row.acceptance_by_depth[0] == pytest.approx(report.accepted_by_depth[0] / report.rounds, abs=1e-4)
    assert sum(row.passes_by_nodes.values()) == report.rounds and set(row.passes_by_nodes) <= set("12345")
    assert row.speedup == statistics.median(p / o for p, o in zip(row.plain_repeats_s, row.repeats_s, strict=True))
    assert row.quality == {"same_as_plain": 1.0, "distinct_3": 0.5} and row.tokens_per_second == 21.0


def test_same_as_plain_counts_rows_that_differ(case):
    plain = Track([[run(1.0, [1, 2, 3], decoded(case).report), run(1.0, [1, 2, 3], decoded(case).report)]])
    own = Track([[plain.runs[0][0], run(1.0, [1, 2, 9], decoded(case).report)]])
    assert row_of(own, plain, method="m", setting="s").quality["same_as_plain"] == 0.5


def test_the_oracle_is_always_right(case):
    prompt = case.prompt(1)[0].tolist()
    truth = decoded(case).units[0].tolist()
    best = decoded(case, HostDrafterAdapter(Oracle({tuple(prompt): prompt + truth})))
    assert best.units[0].tolist() == truth
    assert best.report.acceptance_length == 5.0  # k and the bonus
    assert Oracle({(0, 1): [0, 1, 2]}).propose([[0, 2], [0, 1]], 3) == [[], [2]], "silent where it knows nothing"


def test_empty_rounds_are_plain_passes(case):
    empty = decoded(case, HostDrafterAdapter(Parrot()), policy=Fixed(0))
    assert empty.report.sizes == {1: 20} and torch.equal(empty.units[0], decoded(case).units[0])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_synthetic_rounds_accept_at_their_rate(case, rate):
    made = decoded(case, HostDrafterAdapter(Parrot()), Synthetic(SyntheticOptions(rate)))
    assert made.report.acceptance_length == (1.0 if rate == 0 else 5.0)
