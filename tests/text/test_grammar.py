"""`mmspec.Grammar`: texts of unmodified `generate`, with drafts ahead of a matcher that can go back."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.drafters.emitted import EmittedUnits
from mmspec.core.state import HostCopy
from mmspec_text.drafters.grammar import GrammarDrafter
from tests.support.toy_grammar import CALL, Returning, Steps

VOCAB, END = 131, 17
NOISE: Any = None  # these drafts draw nothing


def grammar(kind: type[Steps] = Returning) -> mmspec.Grammar:
    return mmspec.Grammar(lambda: kind(CALL, VOCAB))


def how(method: str, good: Any) -> dict[str, Any]:
    return {"drafter": good, "k": 4} if method == "draft-model" else {"method": method}


@pytest.mark.thinned
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "method",
    [
        "grammar",
        "token-recycling",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("prompt-lookup", "draft-model")),
    ],
)
@pytest.mark.compiled("history")
def test_texts_are_those_of_generate(
    target: Any, prompts: Callable, ours: Callable, good: Any, method: str, batch: int, sampled: bool
) -> None:
    drafted = 0
    for seed in range(2):
        call = dict(max_new_tokens=30, eos_token_id=END, do_sample=sampled, pad_token_id=0)
        run = stock(target, prompts(batch, seed), seed, **call, logits_processor=[grammar()])
        out = ours(target, prompts(batch, seed), seed, how(method, good), **call, logits_processor=[grammar()])
        assert_same(out.ids, run, out.state)
        drafted += out.report.drafted
        free = stock(target, prompts(batch, seed), seed, **call)
        assert not torch.equal(free.ids, run.ids), "the grammar changed nothing"
    assert drafted > 0


def test_what_is_decided_costs_no_pass(target: Any, prompts: Callable) -> None:
    """Two units of four are, so two passes emit four units, or more where choices repeat."""
    call = dict(max_new_tokens=40, min_new_tokens=40, do_sample=True)
    with mmspec.enable(target, "grammar") as spec:
        target.generate(**prompts(1), **call, logits_processor=[grammar()])
    assert spec.report is not None and spec.report.emitted >= 1.9 * spec.report.rounds


def test_without_a_grammar_drafts_are_those_of_suffix(target: Any, prompts: Callable, ours: Callable) -> None:
    call = dict(max_new_tokens=30, do_sample=False)
    reports = [ours(target, prompts(1), 0, {"method": name, "k": 5}, **call).report for name in ("grammar", "suffix")]
    assert reports[0].drafted == reports[1].drafted > 0


def test_drafts_of_successive_rounds() -> None:
    """Worked by hand. Twenty-fold choices are drafted as they were made before, and only if the grammar allows it."""
    rules, given = grammar(), [3, 50]
    scores = torch.zeros(1, VOCAB)
    state: Any = SimpleNamespace(prompt_length=2, rows=1, host=HostCopy([5], [False], [0]))
    state.warp, state.root = SimpleNamespace(processors=(rules,)), torch.zeros(1, dtype=torch.int64)
    state.history = torch.tensor([[*given, 50, 7, 8, 20, 50, *[0] * 20]])
    drafter = GrammarDrafter()
    state.memory = drafter.start(state, None)
    rules(torch.tensor([given]), scores)
    # 7 and 8 are decided; behind "50 7 8" came 20, behind it 50; then 7 and 8 again.
    assert drafted(drafter, state) == [7, 8, 20, 50, 7, 8]
    # The call went on, and with 9: the end is all that the grammar allows, and behind it there is nothing.
    state.history[0, 7:11] = torch.tensor([7, 8, 20, 9])
    state.host.emitted = [9]
    assert drafted(drafter, state) == [17]
    # Where nothing is known of what follows, the draft ends at the choice.
    drafter = GrammarDrafter()
    state.history[0, 2:4] = torch.tensor([57, 7])
    state.host.emitted, state.memory.emitted = [2], EmittedUnits(state)
    state.memory = drafter.start(state, None)
    assert drafted(drafter, state) == [8]


def drafted(drafter: GrammarDrafter, state: Any) -> list[int]:
    draft = drafter.propose(state, 6, NOISE)
    units: list[int] = draft.units[draft.valid].tolist()
    return units


def test_a_node_is_scored_under_its_own_path() -> None:
    """Whatever the order of histories, those that leave the grammar among them."""
    rules, fresh = grammar(), [Returning(CALL, VOCAB)]
    prompt = [5, 6]
    for path in ([], [50, 7], [50, 8], [44, 7, 8, 30], [44], [44, 7, 8, 20, 9, 17], [9, 17, 0], [50, 7, 8]):
        ids = torch.tensor([prompt + path])
        found = rules(ids, torch.zeros(1, VOCAB))[0].isfinite()
        fresh = Returning(CALL, VOCAB)
        inside = all(fresh.accept(unit) for unit in path)
        allowed = fresh.allowed() if inside else None
        assert torch.equal(found, torch.ones(VOCAB).bool() if allowed is None else allowed), path


def test_shorter_histories_are_scored_first(target: Any, prompts: Callable) -> None:
    """Libraries that remember prefixes need that, in a batch whose rows are at several lengths, too."""
    lengths = list[int]()

    class Watching:
        speculative = "history"

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            lengths.append(input_ids.shape[1])
            return scores

    with mmspec.enable(target, "token-recycling") as spec:
        call = dict(max_new_tokens=24, do_sample=True, top_k=0)
        target.generate(**prompts(3), **call, logits_processor=[Watching()])
    assert spec.report is not None and len(lengths) > 2 * spec.report.rounds
    shorter = sum(later < earlier for earlier, later in itertools.pairwise(lengths))
    assert shorter < spec.report.rounds  # only where a round begins


def test_a_matcher_that_cannot_go_back(target: Any, prompts: Callable, ours: Callable) -> None:
    call = dict(max_new_tokens=12, eos_token_id=END, do_sample=False, pad_token_id=0)
    run = stock(target, prompts(3), 0, **call, logits_processor=[grammar(Steps)])
    with pytest.warns(UserWarning, match="without drafts, because Grammar"):
        out = ours(target, prompts(3), 0, {"method": "grammar"}, **call, logits_processor=[grammar(Steps)])
    assert_same(out.ids, run, out.state)
    assert out.report.drafted == 0
    alone = grammar(Steps)
    alone(torch.tensor([[5, 50]]), torch.zeros(1, VOCAB))
    alone(torch.tensor([[5, 50, 51]]), torch.zeros(1, VOCAB))
    with pytest.raises(ValueError, match="Steps cannot go back"):
        alone(torch.tensor([[5, 50, 52]]), torch.zeros(1, VOCAB))


def test_bad_input() -> None:
    with pytest.raises(TypeError, match=r"accept\(unit\) and allowed\(\).*int is neither"):
        mmspec.Grammar(lambda: 3)
    used = grammar()
    used(torch.tensor([[5, 6]]), torch.zeros(1, VOCAB))
    used(torch.tensor([[5, 6]]), torch.zeros(1, VOCAB))  # the same prompt may be asked again
    with pytest.raises(ValueError, match="follows one call of generate"):
        used(torch.tensor([[5, 7]]), torch.zeros(1, VOCAB))
    with pytest.raises(ValueError, match="follows one call of generate"):
        used(torch.tensor([[5, 6], [5, 6]]), torch.zeros(2, VOCAB))


def test_output_layers_are_padded() -> None:
    """Models have more scores than tokenizers have ids, or a matcher fills whole words of bits."""
    for vocab in (VOCAB - 1, VOCAB + 9):
        found = grammar()(torch.tensor([[5, 6]]), torch.zeros(1, vocab))
        assert found.shape == (1, vocab) and found.isfinite()[0].nonzero()[:, 0].tolist() == [9, *range(40, 60)]
