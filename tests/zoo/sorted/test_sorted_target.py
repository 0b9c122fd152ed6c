"""A draft model with several exits, alone: what speaks, what waits and is filled in, against passes without a cache.

Whoever forgets a key of a layer that a unit did not need, or puts it into another slot, changes scores of later units.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec_zoo.sorted.s2d import ROOM, UNSURE, SortedTarget

EXITS = (1, 2, 4)


@pytest.fixture(scope="module")
def model(make_llama: Callable) -> Any:
    """Its later layers matter less than the first one, and it is sure of some units, and of others not."""
    made = make_llama(seed=3, num_hidden_layers=4)
    for layer in made.model.layers[1:]:
        layer.self_attn.o_proj.weight.data.mul_(0.4)
        layer.mlp.down_proj.weight.data.mul_(0.4)
    made.lm_head.weight.data.mul_(0.5)
    return made


@torch.no_grad()
def by_exits(model: Any, text: list[int]) -> list[Tensor]:
    """Scores `[vocab]` behind a text at every exit: norm and head on the states of the unmodified model's forward."""
    states = model.model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
    ends = [
        states[exit] if exit == 4 else model.model.norm(states[exit]) for exit in EXITS
    ]  # the last one has its norm
    return [model.lm_head(end[0, -1]) for end in ends]


def spoken(scores: list[Tensor], sure: float, stop: float) -> tuple[int, int, Tensor]:
    """The paper's loop for one unit: which sub-model speaks, what is said of it, and its scores."""
    for number, each in enumerate(scores):
        if float(each.softmax(-1).max()) >= sure:
            return number, number, each
    unsure = float(scores[-1].softmax(-1).max()) < stop
    return len(scores) - 1, UNSURE if unsure else len(scores) - 1, scores[-1]


def expected_at(model: Any, texts: list[list[int]], sure: float, stop: float) -> tuple[list[int], Tensor]:
    found = [spoken(by_exits(model, text), sure, stop) for text in texts]
    return [said for _, said, _ in found], torch.stack([scores for *_, scores in found])


def started(model: Any, prompts: Any, sure: float, stop: float = 0.0) -> tuple[SortedTarget, Any, list[list[int]]]:
    """A target, its cache behind ragged prompts, and the texts."""
    target = SortedTarget(TransformersTarget(model, drafting=True), EXITS, sure, stop)
    ids, mask = (prompts[name] for name in ("input_ids", "attention_mask"))
    texts = [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]
    return target, target.start(prompts, 90, 8).cache, texts


def test_rounds_of_random_drafts(model: Any, prompts: Callable) -> None:
    """Twenty rounds, ragged: drafts grow unit by unit, rows keep different parts of them; each row chooses for itself.

    A threshold for every round, so that rounds run one part, or all, or all of a sudden all that has waited.
    """
    draw = torch.Generator().manual_seed(1)
    target, cache, texts = started(model, prompts(3), 0.0)
    said, ran, rows = set[int](), set[tuple[int, ...]](), torch.arange(3)
    for step in range(20):
        target.sure, target.stop = ((0.0, 0.0), (0.35, 0.15), (0.0, 0.0), (1.0, 0.2), (0.25, 0.0))[step % 5]
        units = torch.randint(3, 131, (3, 5), generator=draw)
        fed = 0
        for nodes in (1, 2, 4, 5):
            draft = Draft.chain(units[:, 1:nodes]).rooted(units[:, 0], torch.full((3,), 9))
            output = target.verify(cache, draft, fed)
            numbers, scores = expected_at(
                model,
                [text + row[:nodes].tolist() for text, row in zip(texts, units, strict=True)],
                target.sure,
                target.stop,
            )
            assert output.auxiliary is not None and output.logits is not None
            assert output.auxiliary[:, -1].tolist() == numbers and output.logits.shape[1] == nodes - fed
            torch.testing.assert_close(output.logits[:, -1], scores, atol=2e-4, rtol=1e-3)
            said.update(numbers)
            fed = nodes
        ran.add(tuple(each.begun for each in cache.waiting))
        count = torch.randint(0, 6, (3,), generator=draw)
        path = torch.where(torch.arange(1, 5) < count[:, None], torch.arange(1, 5), -1)
        target.commit(cache, path, count)
        for row in rows.tolist():
            texts[row] += units[row, : int(count[row])].tolist()
    assert said == {UNSURE, 0, 1, 2} and ran >= {(0, 0), (5, 5)}


def test_trees_with_gaps(model: Any, prompts: Callable) -> None:
    """Drafts in another vocabulary have nodes that are no units of a row: its path goes past them, and is moved."""
    target, cache, texts = started(model, prompts(3), 0.0)
    parents = torch.tensor([[-1, 0, 1, 2], [-1, 0, 0, 2], [-1, 0, 1, 1]])
    valid = torch.tensor([[True] * 4, [True, False, True, True], [True, True, False, True]])
    paths = torch.tensor([[1, 2, 3], [2, 3, -1], [1, 3, -1]])
    for step in range(6):
        target.sure = (0.0, 0.0, 1.0, 0.3, 0.0, 0.3)[step]
        units = torch.randint(3, 131, (3, 4), generator=torch.Generator().manual_seed(step))
        output = target.verify(cache, Draft(units, TreeIndex.dynamic(parents), valid))
        for row, path in enumerate(paths.tolist()):
            texts[row] += [int(units[row, node]) for node in (0, *path) if node >= 0]
        numbers, scores = expected_at(model, texts, target.sure, 0.0)
        assert output.auxiliary is not None and output.logits is not None
        assert output.auxiliary[:, 3].tolist() == numbers
        torch.testing.assert_close(output.logits[:, 3], scores, atol=2e-4, rtol=1e-3)
        target.commit(cache, paths, (paths >= 0).sum(1) + 1)


@pytest.mark.parametrize(("sure", "number"), [(0.0, 0), (1.0, 2)])
def test_no_threshold_and_the_highest_one(model: Any, prompts: Callable, sure: float, number: int) -> None:
    """τ = 0: always the smallest sub-model, and the others run only when too much waits; τ = 1: always the largest."""
    target, cache, texts = started(model, prompts(3), sure)
    ran, longest = 0, 0
    for step in range(2 * ROOM):
        units = torch.randint(3, 131, (3, 1), generator=torch.Generator().manual_seed(step))
        output = target.verify(cache, Draft.alone(units[:, 0]))
        ran += cache.waiting[0].begun
        target.commit(cache, torch.empty(3, 0, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
        assert output.auxiliary is not None and output.auxiliary.tolist() == [[number]] * 3
        longest = max(longest, *cache.waiting[1].count.tolist(), *cache.waiting[0].count.tolist())
        for text, unit in zip(texts, units.tolist(), strict=True):
            text += unit
    assert (ran, longest) == ((1, ROOM + 1) if number == 0 else (2 * ROOM, 0))
    target.sure = 1.0
    final = target.verify(cache, Draft.alone(torch.tensor([5, 6, 7]))).logits
    assert final is not None
    expected = expected_at(model, [[*text, unit] for text, unit in zip(texts, (5, 6, 7), strict=True)], 1.0, 0.0)[1]
    torch.testing.assert_close(final[:, 0], expected, atol=2e-4, rtol=1e-3)


def test_rows_that_need_no_scores_run_nothing(model: Any, prompts: Callable) -> None:
    """A row whose draft ended before this pass, and one without a valid node."""
    target, cache, _ = started(model, prompts(2), 1.0)
    draft = Draft.chain(torch.tensor([[4], [5]])).rooted(torch.tensor([6, 7]), torch.tensor([0, 0]))
    target.verify(cache, draft, 0)
    assert cache.waiting[0].begun == 2
    grown = Draft.chain(torch.tensor([[4, 8], [5, 9]])).rooted(torch.tensor([6, 7]), torch.tensor([0, 0]))
    target.verify(cache, grown, 2)
    assert cache.waiting[0].begun == 2 and cache.waiting[0].nodes == 1
    none = Draft(draft.units, draft.index, torch.zeros_like(draft.valid))
    target.verify(cache, none, 0)
    assert cache.waiting[0].begun == 0


def test_models_without_sub_models(make_llama: Callable) -> None:
    target = TransformersTarget(make_llama(num_hidden_layers=4))
    with pytest.raises(ValueError, match="one exit has no sub-models to choose from; the method draft-model takes it"):
        SortedTarget(target, (4,), 0.5, 0.1)
    with pytest.raises(ValueError, match="a model of 4 layers has sub-models of its first 1 to 4 layers"):
        SortedTarget(target, (2, 6), 0.5, 0.1)
