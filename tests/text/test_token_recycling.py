"""`token-recycling`: the matrix, and the tree made of it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.static_tree import counted_tree
from mmspec.core.types import Draft, Scores, Step
from mmspec.hosts.target import TransformersTarget
from mmspec.registry.options import build
from mmspec_text.drafters.token_recycling import TEMPLATE, TokenRecycling, TokenRecyclingOptions

GREEDY = dict(do_sample=False, max_new_tokens=60)


def bound(vocab: int, **options: Any) -> TokenRecycling:
    drafter = TokenRecycling(TokenRecyclingOptions(**options))
    drafter.bind(SimpleNamespace(vocab=vocab))
    return drafter


def learn(drafter: TokenRecycling, matrix: list[list[int]]) -> None:
    drafter.matrix[:] = torch.tensor(matrix)


def observed(drafter: TokenRecycling, units: list, valid: list, logits: Tensor, count: list) -> None:
    draft = Draft.chain(torch.tensor(units)[:, 1:], valid=torch.tensor(valid)[:, 1:])
    draft = draft.rooted(torch.tensor(units)[:, 0], torch.full((len(units),), 99))
    drafter.observe(None, Step(draft, Scores(None, None, logits=logits), None, torch.tensor(count)))


def started(drafter: TokenRecycling, prompt: list, pads: list, first: list) -> None:
    """A call begins whose prefill scored nothing."""
    history = torch.cat([torch.tensor(prompt), torch.tensor(first)[:, None]], 1)
    drafter.start(
        SimpleNamespace(
            history=history, prompt_length=len(prompt[0]), pads=torch.tensor(pads), root=history[:, -1], step=None
        ),
        None,
    )


def test_nodes_are_the_matrix_applied_to_their_parents() -> None:
    torch.manual_seed(1)
    drafter = bound(40, nodes=30, width=5)
    learn(drafter, torch.stack([torch.randperm(40)[:5] for _ in range(40)]).tolist())
    unknown = torch.rand(40) < 0.3
    drafter.matrix[unknown] = -1
    drafter.matrix[~unknown, 3:] = torch.where(
        torch.rand(int((~unknown).sum()), 1) < 0.5, -1, drafter.matrix[~unknown, 3:]
    )
    roots = torch.randint(40, (16,))
    draft = drafter.propose(SimpleNamespace(root=roots), 4, None).rooted(roots, torch.full((16,), 9))
    parent, rank = draft.index.parent[0].tolist(), draft.index.rank[0].tolist()
    assert draft.nodes == 31 == drafter.width(4) + 1 and draft.index.deepest == 4 and draft.distribution is None
    dead = 0
    for b in range(16):
        for i in range(1, draft.nodes):
            above = int(draft.units[b, parent[i]])
            expected = int(drafter.matrix[above, rank[i]]) if draft.valid[b, parent[i]] else -1
            assert bool(draft.valid[b, i]) == (expected >= 0)
            assert expected < 0 or int(draft.units[b, i]) == expected
            dead += expected < 0
        siblings = [(parent[i], int(draft.units[b, i])) for i in range(1, draft.nodes) if draft.valid[b, i]]
        assert len(set(siblings)) == len(siblings)
    assert 50 < dead < 400 and ((draft.units >= 0) & (draft.units < 40)).all()


def test_the_released_tree() -> None:
    """80 nodes, level by level as published; cut trees are the same without what is deeper, or of a higher rank."""
    parents, ranks = counted_tree(TEMPLATE, 6, 8)
    paths = list[tuple[int, ...]]()
    for parent, rank in zip(parents, ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    assert [[len(path) for path in paths].count(level) for level in range(1, 8)] == [8, 21, 25, 15, 8, 3, 0]
    assert {(0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 0, 0), (7, 0), (0, 7, 0), (1, 3), (0, 0, 4, 0)} <= {*paths}
    assert {(1, 4), (0, 0, 0, 0, 3), (6, 0, 0)}.isdisjoint(paths)
    for k, width in ((3, 8), (6, 3), (2, 2)):
        above, own = counted_tree(TEMPLATE, k, width)
        kept = list[tuple[int, ...]]()
        for parent, rank in zip(above, own, strict=True):
            kept.append((*(kept[parent] if parent >= 0 else ()), rank))
        assert kept == [path for path in paths if len(path) <= k and max(path) < width]
    assert bound(40, nodes="released").width(6) == 80


def test_scored_tokens_get_the_top_and_the_last_of_equals_wins() -> None:
    torch.manual_seed(2)
    drafter = bound(12, width=4)
    learn(drafter, [[0, 1, 2, 3]] * 12)
    units = [[5, 6, 5, 7], [8, 5, 9, 6], [10, 11, 1, 2]]
    valid = [[True, True, True, True], [True, True, True, False], [True] * 4]
    logits = torch.randn(3, 4, 12)
    observed(drafter, units, valid, logits, [1, 4, 0])  # the third row is finished
    top = logits.topk(4).indices
    expected = {5: top[1, 1], 6: top[0, 1], 7: top[0, 3], 8: top[1, 0], 9: top[1, 2]}
    for unit in range(12):
        assert drafter.matrix[unit].tolist() == expected.get(unit, torch.arange(4)).tolist(), unit


def test_what_the_warp_forbids_is_not_proposed() -> None:
    drafter = bound(6, width=4)
    logits = torch.tensor([[[0.0, 3.0, -torch.inf, 1.0, -torch.inf, -torch.inf]]])
    observed(drafter, [[2]], [[True]], logits, [1])
    assert drafter.matrix[2].tolist() == [1, 3, 0, -1]


def test_the_prompt_seeds_what_was_never_scored() -> None:
    drafter = bound(12, width=3)
    learn(drafter, [[-1] * 3] * 9 + [[4, 5, 6]] + [[-1] * 3] * 2)
    started(drafter, [[5, 6, 7, 5, 8], [3, 3, 9, 1, 6]], [0, 2], [2, 4])
    # 5 → 6, then 5 → 8; the second row's 3s are padding, 9 was scored before, and 6 → 4 comes after 6 → 7.
    rows = {5: [8, -1, -1], 6: [4, -1, -1], 7: [5, -1, -1], 8: [2, -1, -1], 9: [4, 5, 6], 1: [6, -1, -1]}
    for unit in range(12):
        assert drafter.matrix[unit].tolist() == rows.get(unit, [-1] * 3), unit


def test_a_round_of_a_real_model_is_remembered(target: Any, prompts: Callable) -> None:
    drafter = TokenRecycling()
    decoder = Decoder(TransformersTarget(target), drafter, k=4)
    state = decoder.start(prompts(3), 20)
    assert state.step is not None
    last = state.history[:, state.prompt_length - 1]
    assert drafter.matrix[last[2]].tolist() == state.step.scores.logits[2, 0].topk(8).indices.tolist()
    for _ in range(3):
        step = decoder.settle(state, decoder.speculate(state))
        state.sync()
        scored = step.draft.units[step.draft.valid].tolist()
        top = step.scores.logits[step.draft.valid].topk(8).indices.tolist()
        for unit, successors in dict(zip(scored, top, strict=True)).items():  # a dict keeps the last
            assert drafter.matrix[unit].tolist() == successors
    assert step.draft.nodes == 9 and int(step.draft.valid.sum()) > 3


def test_a_vocabulary_smaller_than_the_matrix_is_wide() -> None:
    drafter = bound(3, nodes=6)
    assert drafter.matrix.shape == (3, 3) and drafter.width(1) == 3 and drafter.width(5) == 6 and drafter.width(0) == 0


@pytest.mark.compiled
def test_without_any_memory_it_is_plain_decoding(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable
) -> None:
    class Forgetful(TokenRecycling):
        def propose(self, *args: Any) -> Draft:
            self.matrix.fill_(-1)
            return super().propose(*args)

    mine = ours(target, prompts(3), 0, {"drafter": Forgetful()}, **GREEDY)
    assert_same(mine.ids, theirs(target, prompts(3), 0, **GREEDY), mine.state)
    assert mine.report.drafted == 0 and mine.report.acceptance_length == 1


def test_a_second_call_starts_warm(target: Any, prompts: Callable) -> None:
    with mmspec.enable(target, drafter=TokenRecycling()) as spec:
        rounds = []
        for seed in (0, 1, 2, 0, 1, 2):
            target.generate(**prompts(1, seed), do_sample=False, max_new_tokens=20)
            rounds.append(spec.report.rounds)
    assert sum(rounds[3:]) < 0.85 * sum(rounds[:3]), rounds


def test_inference_mode_and_no_grad_may_take_turns(target: Any, prompts: Callable) -> None:
    drafter = TokenRecycling()
    with torch.inference_mode():
        decoder = Decoder(TransformersTarget(target), drafter, k=3)
        first = decoder.generate(prompts(1), 12).units
    second = decoder.generate(prompts(1), 12)
    assert torch.equal(first[0], second.units[0]) and second.report.faults == 0


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"'nodes' is 0, allowed is int >= 1"):
        build(TokenRecyclingOptions, {"nodes": 0}, "token-recycling")
