"""Promises that hold for every discrete toy, every drafter and every rule that takes it."""

import itertools
from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.policies import Confidence, Fixed
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.warp import Warp
from mmspec.testing.oracles import greedy
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree
from tests.support.cases import CASES, RULES
from tests.support.cycle import Cycle

ROWS, LIMIT = 24, 12


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]()


@pytest.fixture(scope="module")
def plain(case):
    return Decoder(case.target).generate(case.prompt(ROWS), LIMIT, seed=7, warp=case.warp).units


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["a rule a drafter", "all"])
def pairs(case, request):
    return case.pairs(all=request.param)


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_match_equals_plain_for_every_drafter(case, plain):
    lengths = {}
    for name, make in case.drafters.items():
        for k in (1, 3):
            output = Decoder(case.target, make(), k=k).generate(case.prompt(ROWS), LIMIT, seed=7, warp=case.warp)
            assert equal(output.units, plain), f"{name}, k = {k}"
            lengths[name] = output.report.acceptance_length
    assert max(lengths.values()) > 1.4, lengths  # drafts are accepted, or this test compares nothing
    assert all(length >= 1 for length in lengths.values()), lengths


def test_policies_never_change_the_output_under_match(case, plain):
    for name, make in case.drafters.items():
        for policy in (Fixed(0), Fixed(2), Confidence(3, 0.4), Cycle(0, 3, 1, 2)):
            decoder = Decoder(case.target, make(), k=3, policy=policy)
            output = decoder.generate(case.prompt(ROWS), LIMIT, seed=7, warp=case.warp)
            assert equal(output.units, plain), f"{name}, {policy}"
            if policy == Fixed(0):
                assert output.report.rounds == LIMIT - 1


def test_a_row_does_not_depend_on_its_batch(case, pairs):
    seeds = [3, 1, 4, 1, 5]
    for name, make, rule in pairs:
        decoder = Decoder(case.target, make(), rule(), k=3)
        together = decoder.generate(case.prompt(5), 12, seed=seeds, warp=case.warp).units
        assert torch.equal(together[1], together[3]) and not torch.equal(together[0], together[1])
        alone = decoder.generate(case.prompt(1), 12, seed=seeds[2:3], warp=case.warp).units[0]
        assert torch.equal(alone, together[2]), f"{name} under {rule.__name__}"


def test_rows_are_ragged_and_end_at_the_limit(case, pairs):
    for name, make, rule in pairs:
        ragged = False

        def look(state):
            nonlocal ragged
            ragged |= len(set(state.host.emitted)) > 1
            assert max(state.host.emitted) <= 11

        decoder = Decoder(case.target, make(), rule(), k=3)
        output = decoder.generate(case.prompt(ROWS), 11, seed=2, warp=case.warp, on_step=look)
        assert [len(u) for u in output.units] == [11] * ROWS, f"{name} under {rule.__name__}"
        assert ragged or "bad" in name, f"{name} under {rule.__name__}: all rows accepted alike, which tests nothing"
        assert output.report.emitted == 11 * ROWS


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_windows_longer_than_what_is_left(case, plain, limit):
    for name, make in case.drafters.items():
        output = Decoder(case.target, make(), k=9).generate(case.prompt(ROWS), limit, seed=7, warp=case.warp)
        assert equal(output.units, [row[:limit] for row in plain]), name


def test_temperature_zero_is_greedy_under_every_rule(case, pairs):
    expected = greedy(case.next_distribution, 12)
    warp = Warp(sample=False, guidance=case.warp.guidance)
    for name, make, rule in pairs:
        output = Decoder(case.target, make(), rule(), k=3).generate(case.prompt(2), 12, seed=1, warp=warp)
        assert all(torch.equal(row, expected) for row in output.units), f"{name} under {rule.__name__}"


def first_end(row, stops):
    return next((i + 1 for i, unit in enumerate(row.tolist()) if unit in stops), LIMIT)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("several", [False, True])
def test_rows_stop_at_the_first_end(case, pairs, plain, several):
    choices = [(0, 1), (0, 2), (1, 2)] if several else [(0,), (1,), (2,)]
    stops = max(choices, key=lambda ids: len({first_end(row, ids) for row in plain}))
    ends = list(stops) if several else stops[0]
    first = [first_end(row, stops) for row in plain]
    assert len(set(first)) > 2, "the rows must end at different places"
    for name, make, rule in pairs:
        cut = False

        def look(state):
            nonlocal cut
            cut |= any(0 < now < LIMIT for now, done in zip(state.host.emitted, state.host.done, strict=True) if done)

        decoder = Decoder(case.target, make(), rule(), k=3)
        output = decoder.generate(case.prompt(ROWS), LIMIT, seed=7, warp=case.warp, ends=ends, on_step=look)
        assert cut
        for row in output.units:
            inside = torch.isin(row, torch.tensor(stops))
            assert not inside[:-1].any() and (inside[-1] or len(row) == LIMIT), f"{name} under {rule.__name__}"
        if rule is Match:
            assert equal(output.units, [row[:n] for row, n in zip(plain, first, strict=True)]), name


def test_ends_inside_an_accepted_path_are_met(case):
    """The accepted path continues after an end unit; units after it are neither emitted nor counted."""
    met = 0
    for _, make in case.drafters.items():
        decoder = Decoder(case.target, make(), k=3)
        state = decoder.start(case.prompt(200), LIMIT, seed=1, warp=case.warp, ends=2)
        before = list(state.host.emitted)
        step = decoder.settle(state, decoder.speculate(state))
        state.sync()
        beyond = step.count < step.verdict.length + 1
        live = step.count > 0
        met += int((beyond & live).sum())
        assert torch.equal(torch.tensor(state.host.emitted), torch.tensor(before) + step.count)
        assert (state.history.gather(1, state.known[:, None] - 1)[:, 0] == 2)[beyond & live].all()
    assert met > 5


def test_a_drafter_that_falls_silent_leaves_plain_decoding(case, plain):
    for name, make in case.drafters.items():
        drafter = make()
        propose, calls = drafter.propose, itertools.count()

        def silent(state, k, noise, propose=propose, calls=calls):
            draft, call = propose(state, k, noise), next(calls)
            # In every round a third of the rows has no draft; in every third round nobody has.
            speaks = (torch.arange(state.rows)[:, None] + call) % 3 > 0
            return replace(draft, valid=draft.valid & speaks & (call % 3 > 0))

        drafter.propose = silent
        output = Decoder(case.target, drafter, k=3).generate(case.prompt(ROWS), LIMIT, seed=7, warp=case.warp)
        assert output.report.faults == 0
        assert equal(output.units, plain), name


def test_pairs_that_cannot_be_verified_exactly_are_refused(case):
    for name, make in case.drafters.items():
        for rule in {Match, Rejection, Block, RecursiveRejection} - set(RULES[name.split()[0]]):
            word = {"window": "redraw", "tree": "chain", "reranked": "rerank"}[name.split()[0]]
            with pytest.raises(ValueError, match=f"nothing offers.*{word}"):
                Decoder(case.target, make(), rule())


def test_a_good_draft_beats_a_bad_one():
    case = CASES["markov"]()
    table = case.target.table
    length = {}
    for name, drafter in (
        ("perfect", MarkovChain(table)),
        ("perfect tree", MarkovTree(table, (2, 2, 1))),
        ("bad", MarkovChain(-2 * table)),
    ):
        output = Decoder(case.target, drafter, k=3).generate(case.prompt(500), LIMIT, warp=case.warp)
        length[name] = output.report.acceptance_length
    # The perfect drafter shares the target's noise, and so agrees with it everywhere but at the limit.
    assert length["perfect"] > 3.5 and length["perfect tree"] > 3.5 and length["bad"] < 1.5, length
