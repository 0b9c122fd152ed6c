"""Counts, against a slow recount of every step."""

import json
from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.report import Bias, Report
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, Verdict
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov_drafters import MarkovTree

LARGE = HistoryTarget.random(5, seed=0)
PROMPT = torch.tensor([[0, 1], [2, 3], [4, 4], [1, 1]])


@pytest.mark.parametrize("end", [None, 3])
@pytest.mark.parametrize("drafter", [None, DraftModel(LARGE.near(1, 0.3)), MarkovTree(torch.randn(5, 5, 5), (2, 2))])
def test_counts(drafter, end):
    decoder = Decoder(LARGE, drafter, k=3)
    state = decoder.start(PROMPT, 25, seed=1, ends=end)
    passes = drafted = accepted = 0
    by_depth: dict[int, int] = {}
    while not state.finished:
        before, active = state.emitted.clone(), ~state.done
        history = state.history.clone()
        state.report.rounds += 1
        state.report.row_rounds += state.host.done.count(False)
        pending = decoder.speculate(state)
        step = decoder.settle(state, pending)
        state.sync()
        for row in active.nonzero()[:, 0].tolist():
            passes += 1
            drafted += int(step.draft.valid[row, 1:].sum())
            new = int(state.emitted[row] - before[row])
            kept = [int(n) for n in step.verdict.path[row, : int(step.verdict.length[row])]][:new]
            first = 2 + int(before[row])
            assert [int(step.draft.units[row, n]) for n in kept] == state.history[
                row, first : first + len(kept)
            ].tolist()
            assert torch.equal(state.history[row, :first], history[row, :first])
            accepted += len(kept)
            for depth in range(len(kept)):
                by_depth[depth] = by_depth.get(depth, 0) + 1

    report, emitted = state.report, sum(len(row) for row in state.output())
    assert (report.row_rounds, report.drafted, report.accepted) == (passes, drafted, accepted)
    assert [n for n in report.accepted_by_depth if n] == [by_depth[d] for d in sorted(by_depth)]
    assert report.emitted == emitted and report.rows == 4
    assert report.acceptance_length == (emitted - 4) / passes
    assert report.acceptance_rate == (accepted / drafted if drafted else 0)
    if end is None:
        assert emitted == 4 + passes + accepted  # every pass emits one unit more than it accepts


def test_generate_counts_its_own_passes():
    plain = Decoder(LARGE).generate(PROMPT, 25).report
    assert plain.rounds == 24 and plain.row_rounds == 96 and plain.acceptance_length == 1 and plain.drafted == 0
    fast = Decoder(LARGE, DraftModel(LARGE), k=3).generate(PROMPT, 25).report
    assert fast.rounds == 6 and fast.acceptance_length == 4


def test_a_report_names_its_rule_and_times():
    report = Decoder(LARGE, DraftModel(LARGE), Rejection(), k=3, name="mine").generate(PROMPT, 25).report
    assert report.method == "mine" and report.exactness == "lossless"
    assert all(report.seconds[phase] > 0 for phase in ("prefill", "draft", "verify", "rest"))
    for part in ("mine (lossless)", "100 units in 6 passes", "acceptance length 4.00", "acceptance rate 1.00"):
        assert part in str(report)


def test_what_a_report_says_in_json_and_in_a_notebook():
    decoder = Decoder(LARGE, DraftModel(LARGE.near(1)), Rejection(), k=3, name="<mine>")
    report = decoder.generate(PROMPT, 25).report
    found = json.loads(report.to_json())
    assert found == report.to_dict()
    kept = (report.emitted, report.acceptance_length, report.accepted_by_depth, dict(report.seconds), None)
    assert tuple(found[n] for n in ("emitted", "acceptance_length", "accepted_by_depth", "seconds", "bias")) == kept
    assert sum(found["sizes"].values()) == report.rounds and found["shape"] == report.shape
    assert f"<td>{report.acceptance_length:.2f}</td>" in report._repr_html_()
    assert "&lt;mine&gt; (lossless)" in report._repr_html_() and "bias" not in report._repr_html_()


def test_a_total_is_the_report_of_one_call():
    """Of two calls with one row each: what a call with both rows would have counted, but its rounds, which add up."""
    decoder = Decoder(LARGE, DraftModel(LARGE.near(1)), k=3)
    each = [decoder.generate(PROMPT[row : row + 1], 25, seed=row).report for row in range(2)]
    whole = Report.total(each)
    for name in ("rounds", "emitted", "rows", "drafted", "accepted"):
        assert getattr(whole, name) == sum(getattr(report, name) for report in each)
    assert whole.acceptance_length == (50 - 2) / (each[0].rounds + each[1].rounds)
    assert sum(whole.accepted_by_depth) == whole.accepted and sum(whole.sizes.values()) == whole.rounds
    assert whole.seconds["draft"] == sum(report.seconds["draft"] for report in each)
    lossy = Report("other", "lossy", emitted=8, rows=2, width=3)
    lossy._bias_sums = torch.tensor([2.0, 1.0, 4.0])
    mixed = Report.total([lossy, whole, lossy])
    assert (mixed.method, mixed.exactness, mixed.width) == (f"other, {whole.method}", "lossy", None)
    assert mixed.bias == Bias(tv=4 / 66, altered=4 / 6, excess_acceptance=2 / 8)
    assert Report.total([]) == Report()


def test_an_empty_report_divides_by_nothing():
    assert Report().acceptance_length == 0 and Report().acceptance_rate == 0 and Report().accepted_by_depth == []


def test_bias_is_summed_over_the_nodes_where_a_unit_was_emitted():
    """A tree, of which the first row emits three units, the second one of two accepted (an end), the third is done."""
    tree = Draft.tree(torch.zeros(3, 4).long(), [-1, 0, 0, 2]).rooted(torch.zeros(3).long(), torch.tensor([9, 9, 9]))
    valid = tree.valid.clone()
    valid[0, 4] = False  # node 3 has no child in the first row: nothing was decided there
    tv = torch.tensor([[0.5, 0.25, 8.0, 0.125, 8.0]]).expand(3, -1)
    path = torch.tensor([[1, 3], [1, 3], [1, 3]])
    verdict = Verdict(path, torch.tensor([2, 2, 2]), torch.zeros(3).long(), tree.units, tv, tv / 2)
    count = torch.tensor([3, 1, 0])
    assert verdict.emitted(count).tolist() == [[True, True, False, True, False], [True] + [False] * 4, [False] * 5]
    report = Report(exactness="lossy", emitted=8, rows=2)
    for _ in range(2):
        report.add_bias(replace(tree, valid=valid), verdict, count)
    assert report.bias == Bias(tv=2.75 / 8, altered=2.75 / 2, excess_acceptance=1.375 / 6)
    assert "expected altered units per row 1.4, total variation per unit 0.3438" in str(report)


def test_only_rules_that_measure_report_a_bias():
    report = Decoder(LARGE, DraftModel(LARGE.near(1)), Rejection(), k=3).generate(PROMPT, 25).report
    assert report.bias is None and "altered" not in str(report)
