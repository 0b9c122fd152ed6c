"""The comparison of recordings that the test writes: every kind of finding, every exit code, medians."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.cli.verify import _summary
from mmspec.compare.children import Runs
from mmspec.compare.comparison import Comparison, compare
from mmspec.compare.findings import differing, to_judge
from mmspec.compare.recording import CALLS, STDOUT, RecordedCall, Recording, save

IDS = [[1, 2, 3, 4, 5], [1, 2, 6, 7, 8]]
Make = Callable[..., Recording]


@pytest.fixture
def record(tmp_path: Path) -> Make:
    """`record(ids of each call, stdout=, …)`: prompts of two tokens; `change` are fields of calls by number."""
    made = 0

    def make(*ids: list[list[int]] | None, stdout: str = "one\ntwo\n", change: Any = None, seconds: float = 1) -> Any:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        folder.mkdir()
        calls = [RecordedCall(number, "Llama", number == 1, 2, "began", seconds) for number in range(1, len(ids) + 1)]
        for number, fields in (change or {}).items():
            calls[number - 1] = RecordedCall(**{**asdict(calls[number - 1]), **fields})
        save(folder, calls, {n: torch.tensor(each) for n, each in enumerate(ids, 1) if each is not None})
        (folder / STDOUT).write_text(stdout)
        return Recording(folder)

    return make


def said(plain: Recording, ours: Recording, again: Recording | None = None) -> Comparison:
    assert differing(plain, ours) == (again is not None)
    return compare(Runs([plain], [ours], again))


def kinds(comparison: Comparison) -> list[str]:
    return [call.finding.kind for call in comparison.calls]


def test_equal_runs(record: Make) -> None:
    changed = {1: {"emitted": 9, "passes": 4, "seconds": 90}}
    comparison = said(record(IDS, IDS, seconds=3), record(IDS, IDS, seconds=2, change=changed))
    assert comparison.code == 0 and kinds(comparison) == ["same", "same"]
    assert comparison.speedup() == 1.5 and comparison.acceptance_length == 2.25
    assert comparison.calls[0].shape == "2 × 3"


def test_calls_in_which_models_warm_up_have_no_speed(record: Make) -> None:
    """One call, or one of each of two models: there are seconds, and they say nothing."""
    both = {2: {"first": True}}
    alone = said(record(IDS, seconds=3), record(IDS, seconds=5))
    two = said(record(IDS, IDS, seconds=3, change=both), record(IDS, IDS, seconds=5, change=both))
    for comparison in (alone, two):
        assert comparison.code == 0 and comparison.decoded and comparison.speedup() is None
        words = "\n".join(_summary(comparison, None))
        assert "too few calls to say" in words and "×" not in words and "slower" not in words
    warm = said(record(IDS, IDS, seconds=3), record(IDS, IDS, seconds=5))
    assert "3.000 s plainly, 5.000 s with mmspec: 0.60× (slower than plain)" in "\n".join(_summary(warm, None))


def test_a_wrong_token(record: Make) -> None:
    ours = record([[1, 2, 3, 4, 5], [1, 2, 6, 9, 8]])
    again = record(IDS, change={1: {"judged": True, "wrong": "margin 3"}})
    comparison = said(record(IDS), ours, again)
    assert comparison.code == 1 and kinds(comparison) == ["wrong"]
    assert comparison.calls[0].finding.text == "row 1, new token 1: 7 plainly, 9 with mmspec; margin 3"
    unjudged = said(record(IDS), ours, record(IDS))
    assert unjudged.code == 1 and "not known" in unjudged.calls[0].finding.text


def test_a_near_tie_and_what_follows_from_it(record: Make) -> None:
    other = [[1, 2, 3, 4, 5], [1, 2, 6, 9, 8]]
    later = [[6, 9, 1]]
    plain, ours = record(IDS, [[6, 7, 1]], stdout="7\n"), record(other, later, stdout="9\n")
    again = record(IDS, [[6, 7, 1]], stdout="7\n", change={1: {"judged": True, "near_ties": [(1, 1, 2e-6)]}})
    assert to_judge(plain, ours) == [1]
    comparison = said(plain, ours, again)
    assert comparison.code == 3 and kinds(comparison) == ["near-tie", "follows"] and comparison.stdout.kind == "follows"
    assert "margin 2.0e-06" in comparison.calls[0].finding.text


def test_another_beginning_is_wrong_where_nothing_led_to_it(record: Make) -> None:
    other = [[1, 2, 3, 4, 9], [1, 2, 6, 7, 8]]
    plain, ours = record(IDS, IDS), record(IDS, other, change={2: {"began": "elsewhere"}})
    assert to_judge(plain, ours) == []
    assert said(plain, ours, record(IDS, IDS)).code == 1


@pytest.mark.parametrize("ids", [(IDS,), (IDS, IDS, IDS)], ids=["one call less", "one call more"])
def test_other_calls(record: Make, ids: Any) -> None:
    assert said(record(IDS, IDS), record(*ids), record(IDS, IDS)).code == 1


def test_another_shape_and_another_exception_are_differences(record: Make) -> None:
    shorter = [row[:4] for row in IDS]
    comparison = said(record(IDS), record(shorter), record(IDS))
    assert comparison.code == 1 and "3 new tokens plainly, 2 with mmspec" in comparison.calls[0].finding.text
    raised = record(None, change={1: {"raised": "ValueError"}})
    comparison = said(record(IDS), raised, record(IDS))
    assert comparison.code == 1 and "a result plainly, ValueError with mmspec" in comparison.calls[0].finding.text
    alike = said(raised, record(None, change={1: {"raised": "ValueError"}}))
    assert alike.code == 2 and kinds(alike) == ["left alone"], "nothing was generated, so nothing was compared"


def test_a_script_that_does_not_repeat_itself_proves_nothing(record: Make) -> None:
    comparison = said(record(IDS), record([[1, 2, 0, 0, 0]] * 2), record([[1, 2, 9, 9, 9]] * 2))
    assert comparison.code == 2 and kinds(comparison) == ["unsteady"]


def test_all_calls_left_alone_prove_nothing(record: Make) -> None:
    comparison = said(record(IDS), record(IDS, change={1: {"left_alone": "num_beams=2", "documented": True}}))
    assert comparison.code == 2 and comparison.speedup() is None and kinds(comparison) == ["left alone"]


def test_what_was_left_alone_is_not_counted_as_equal(record: Make) -> None:
    beams = {"left_alone": "num_beams=2", "documented": True}
    comparison = said(record(IDS, IDS), record(IDS, IDS, change={2: beams}))
    assert comparison.code == 4 and kinds(comparison) == ["same", "left alone"]
    assert comparison.tally() == "1 calls equal, 0 differ, 0 not supported, 1 left alone (num_beams=2)"
    cannot = {"left_alone": "no such thing"}
    comparison = said(record(IDS, IDS, IDS), record(IDS, IDS, IDS, change={2: beams, 3: cannot}))
    assert comparison.code == 1 and kinds(comparison) == ["same", "left alone", "not supported"]
    assert "1 not supported (no such thing), 1 left alone" in comparison.tally()


def test_a_call_that_is_not_supported_is_no_pass_behind_a_near_tie_either(record: Make) -> None:
    other, later = [[1, 2, 3, 4, 5], [1, 2, 6, 9, 8]], [[6, 9, 1]]
    plain, ours = record(IDS, [[6, 7, 1]]), record(other, later, change={2: {"left_alone": "no such thing"}})
    again = record(IDS, [[6, 7, 1]], change={1: {"judged": True, "near_ties": [(1, 1, 2e-6)]}})
    comparison = said(plain, ours, again)
    assert comparison.code == 1 and kinds(comparison) == ["near-tie", "not supported"]


@pytest.mark.parametrize(
    ("ours", "again", "kind", "words"),
    [
        ("a\nx\n", "a\nb\n", "wrong", "line 2: 'b' plainly, 'x' with mmspec"),
        ("a\nx\n", "a\ny\n", "same", "two plain runs print differently too (line 2)"),
        ("z\nx\n", "a\ny\n", "wrong", "line 1"),
        ("a\nb\nc\n", "a\nb\n", "wrong", "2 lines plainly, 3 with mmspec"),
        ("a\nx\n", "a\n", "unsteady", "different numbers of lines"),
        ("a\nb", "a\nb\n", "wrong", "line 2"),
    ],
)
def test_printed_lines(record: Make, ours: str, again: str, kind: str, words: str) -> None:
    comparison = said(record(IDS, stdout="a\nb\n"), record(IDS, stdout=ours), record(IDS, stdout=again))
    assert comparison.stdout.kind == kind and words in comparison.stdout.text
    assert comparison.code == {"same": 0, "wrong": 1, "unsteady": 2}[kind]


def test_seconds_are_medians_and_the_run_that_differs_is_the_one_that_is_shown(record: Make) -> None:
    other = [[1, 2, 3, 4, 5], [1, 2, 6, 9, 8]]
    plain = [record(IDS, IDS, seconds=seconds) for seconds in (9, 4, 5)]
    ours = [record(IDS, IDS, seconds=2), record(IDS, other, seconds=1), record(IDS, IDS, seconds=2)]
    comparison = compare(Runs(plain, ours, record(IDS, IDS, change={2: {"judged": True, "wrong": "so"}})))
    assert kinds(comparison) == ["same", "wrong"] and comparison.speedup() == 2.5
    assert [call.plain_s for call in comparison.calls] == [5, 5]


def test_recordings_are_no_pickles(record: Make) -> None:
    folder = record(IDS, None).folder
    assert len(json.loads((folder / CALLS).read_text())) == 2
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors", ""}


def test_in_half_precision_other_ids_than_those_of_transformers_prove_nothing(record: Make) -> None:
    other = [[1, 2, 3, 4, 5], [1, 2, 6, 9, 8]]
    half = {1: {"half": True}}
    comparison = said(record(IDS, change=half), record(other, change=half), record(IDS, change=half))
    assert comparison.code == 2 and kinds(comparison) == ["half"] and comparison.half
    assert "row 1, new token 1" in comparison.calls[0].finding.text
    equal = said(record(IDS, change=half), record(IDS, change=half))
    assert equal.code == 0 and equal.half and not equal.widths


def test_passes_of_one_width_excuse_no_difference(record: Make) -> None:
    one = {1: {"half": True, "width": 9}}
    comparison = said(record(IDS, change=one), record([IDS[1], IDS[1]], change=one), record(IDS, change=one))
    assert comparison.code == 1 and kinds(comparison) == ["wrong"] and not comparison.half
    assert "all passes of both have 9 nodes" in comparison.calls[0].finding.text
    equal = said(record(IDS, change=one), record(IDS, change=one))
    assert equal.code == 0 and equal.widths == [9]
    restless = said(record(IDS, change=one), record([IDS[1], IDS[1]], change=one), record([IDS[0]] * 2, change=one))
    assert kinds(restless) == ["unsteady"]
