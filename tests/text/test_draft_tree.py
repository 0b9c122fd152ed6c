"""Trees of a smaller model, through the face that users meet."""

from collections.abc import Callable
from typing import Any

import pytest

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.drafters.shapes import Beam, Branching, Rerank
from mmspec_text.drafters.draft_model import DraftTreeOptions, TextDraftTree

SHAPES = [
    {},
    {"width": 2, "nodes": 5},
    {"form": "greedy", "nodes": 9},
    {"form": "heap", "nodes": 9},
    {"form": "branching", "branching": [3, 1, 2]},
    {"form": "beam", "width": 3},
]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.compiled("history")
def test_a_tree_writes_what_stock_sampling_writes(
    target: Any, good: Any, prompts: Callable, theirs: Callable, ours: Callable, options: dict, do_sample: bool
) -> None:
    inputs, call = prompts(3), {"max_new_tokens": 24, "do_sample": do_sample}
    mine = ours(target, inputs, 0, {"method": "draft-tree", "model": good, "k": 3, **options}, **call)
    assert_same(mine.ids, theirs(target, inputs, 0, **call), mine.state)
    assert mine.report.acceptance_length > 1.5 and not mine.report.faults


@pytest.mark.compiled
def test_a_small_model_of_another_mind_changes_nothing(
    target: Any, bad: Any, prompts: Callable, theirs: Callable, ours: Callable
) -> None:
    inputs, call = prompts(3), {"max_new_tokens": 24, "do_sample": True}
    mine = ours(target, inputs, 0, {"method": "draft-tree", "model": bad, "k": 2}, **call)
    assert_same(mine.ids, theirs(target, inputs, 0, **call), mine.state)


@pytest.mark.parametrize("options", [{}, {"form": "branching"}, {"form": "heap", "nodes": 9}])
def test_rsd_samples(target: Any, good: Any, prompts: Callable, ours: Callable, options: dict) -> None:
    how = {"method": "rsd", "model": good, "k": 3, "noise": "philox", "width": 3, **options}
    mine = ours(target, prompts(3), 0, how, max_new_tokens=24, do_sample=True)
    assert mine.report.exactness == "lossless" and mine.report.acceptance_length > 1.5 and not mine.report.faults


def test_a_reranked_tree_under_recursive_rejection_is_refused(target: Any, good: Any) -> None:
    says = r"TextDraftTree with RecursiveRejection .* nothing offers rerank .*form=heap, branching and beam keep"
    with pytest.raises(ValueError, match=says):
        mmspec.enable(target, "rsd", model=good, form="rerank")


def test_options_become_shapes() -> None:
    made = DraftTreeOptions(width=4, nodes=9, spread=0.5).build_shape()
    assert made == Rerank(frontier=4, children=4, nodes=9, spread=0.5)
    assert DraftTreeOptions(form="branching", branching=(4, 2)).build_shape() == Branching((4, 2))
    assert DraftTreeOptions(form="beam", width=3).build_shape() == Beam(3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"form": "star"}, "'rerank' or 'greedy' or 'heap' or 'branching' or 'beam'"),
        ({"width": 0}, "allowed is int >= 1"),
        ({"spread": 0}, "allowed is float > 0"),
        ({"branching": []}, "branching lists children per depth"),
        ({"branching": [2, 0]}, r"'branching\[1\]' is"),
    ],
)
def test_bad_options(target: Any, good: Any, options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        mmspec.enable(target, "draft-tree", model=good, **options)


def test_a_model_must_be_named() -> None:
    with pytest.raises(ValueError, match="draft-tree needs a smaller model"):
        TextDraftTree()


def test_more_siblings_than_tokens(make_llama: Callable) -> None:
    model = make_llama(vocab_size=20)
    with pytest.raises(ValueError, match="wants 30 siblings, and there are 20 unit ids"):
        mmspec.enable(model, "draft-tree", model=model, width=30)
