"""A target behind a condition is the model on prompts that hold it; `ambedkar` drafts for it from the bare prompt."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import Stock, assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.hidden import FINAL
from mmspec.core.rules import Rejection
from mmspec.core.warp import Warp
from mmspec.hosts.conditioned import Condition
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_zoo.conditioned.ambedkar import Ambedkar, AmbedkarOptions
from tests.support import random_models
from tests.support.zoo import build, noisy

CLAUSES = [9, 4, 4, 71, 30]
SAMPLINGS: list[dict[str, Any]] = [{"do_sample": False}, {"do_sample": True, "temperature": 0.8}]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("falcon-new", "mistral", "gemma2", "qwen3_moe")]


class Counting(MarkovTarget):
    """Counts by ones; behind a condition, by its first id. The unit that follows has a probability of `sure`."""

    def __init__(self, step: int = 1, sure: float = 0.9) -> None:
        table = torch.full((7, 7, 7), (1 - sure) / 6)
        for unit in range(7):
            table[:, unit, (unit + step) % 7] = sure
        super().__init__(table.log())
        self.sure = sure

    def with_condition(self, condition: Condition | None) -> "Counting":
        return Counting(1 if condition is None or not len(condition) else int(condition.ids[0]), self.sure)


def small_counter() -> MarkovTarget:
    """Counts by twos behind even units, and by ones behind odd ones."""
    even, odd = Counting(2, 0.6).table, Counting(1, 0.6).table
    return MarkovTarget(torch.where((torch.arange(7) % 2 == 0)[None, :, None], even, odd))


def drafting(condition: list[int]) -> Ambedkar:
    drafter = Ambedkar(AmbedkarOptions(model=random_models.small(), condition=condition))
    drafter.model = small_counter()
    drafter.bind = lambda target: None  # type: ignore[method-assign]
    return drafter


@pytest.mark.parametrize(
    ("condition", "drafts", "lengths", "text"),
    [
        ([2], [[2, 4, 6, 1], [3, 4, 6, 1]], [3, 0], [2, 4, 6, 1, 3, 5]),
        ([], [[1, 2, 4, 6], [3, 4, 6, 1]], [1, 1], [1, 2, 3, 4, 5]),
    ],
)
def test_two_rounds_by_hand(condition: list[int], drafts: Any, lengths: list[int], text: list[int]) -> None:
    """The prompt is 6, 0; the small model reads nothing else. Greedy, three units a draft, each behind its root.

    Behind the condition 2 the target counts by twos, and writes 2 first. Round 1: the small model says 4, 6, 1, which
    all are the target's; it adds 3. Round 2: behind 3, an odd unit, the small model says 4, 6, 1; the target says 5.
    Without a condition the target counts by ones, and writes 1. Round 1: 2, 4, 6 are drafted; 2 is right, and behind it
    comes 3. Round 2: 4, 6, 1 are drafted; 4 is right, and behind it comes 5.
    """
    decoder = Decoder(Counting(), drafting(condition), k=3)
    state = decoder.start(torch.tensor([[6, 0]]), 20, warp=Warp.sampling(temperature=0))
    seen, accepted = [], []
    for _ in range(2):
        decoder.advance(state)
        assert state.step is not None
        seen.append(state.step.draft.units[0].tolist())
        accepted.append(int(state.step.verdict.length))
    assert seen == drafts and accepted == lengths and state.output()[0].tolist() == text
    assert "invariant with respect to the model's distribution behind the condition" in str(state.report)


def test_the_joint_is_that_of_the_target_behind_the_condition() -> None:
    """Under `rejection`, of three units; the bare target's joint is told apart."""
    decoder = Decoder(Counting(sure=0.5), drafting([2]), Rejection(), k=2)
    rows = torch.tensor([[6, 0]]).expand(50_000, 2)
    output = decoder.generate(rows, 3, seed=3)
    units, behind, bare = torch.stack(output.units), Counting(2, 0.5), Counting(1, 0.5)

    def joint(target: MarkovTarget) -> Tensor:
        return exact_joint(lambda text: target.table.softmax(-1)[(6, 0, *text)[-2:]], 3, 7)

    assert joint_p_value(units, joint(behind)) > 1e-4 > joint_p_value(units, joint(bare))
    assert output.report.exactness == "lossless" and output.report.acceptance_length > 1.3


@pytest.mark.slow
def test_the_joint_of_a_model_behind_a_condition() -> None:
    """The same of a Llama of seven ids, whose probabilities come from its own forward on whole texts."""
    model, condition, text = tiny_models.llama(), [2, 5, 5, 1], [3, 6, 0]
    drafter = Ambedkar(AmbedkarOptions(model=random_models.small(), condition=condition, behind=1))
    decoder = Decoder(TransformersTarget(model), drafter, Rejection(), k=2)

    def follows(emitted: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            ids = torch.tensor([[text[0], *condition, *text[1:], *emitted]])
            return model(input_ids=ids).logits[0, -1].softmax(-1)

    batches = [decoder.generate(torch.tensor([text]).expand(20_000, -1), 3, seed=n).units for n in range(10)]
    units = torch.stack([row for batch in batches for row in batch])
    assert joint_p_value(units, exact_joint(follows, 3, 7)) > 1e-4


def holding(inputs: dict[str, Tensor], condition: list[int], behind: int) -> dict[str, Tensor]:
    """Prompts that hold the condition, row by row."""
    rows = [ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]
    rows = [row[:behind] + condition + row[behind:] for row in rows]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def assert_same_text(ours: Tensor, given: Tensor, run: Stock, state: Tensor) -> None:
    """The new tokens are stock's; the prompt in front of them is the one that was given."""
    prompt = given.shape[1]
    assert torch.equal(ours[:, :prompt], given)
    assert_same(torch.cat([run.ids[:, : run.ids.shape[1] - len(run.scores)], ours[:, prompt:]], 1), run, state)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2", *SLOW])
def test_equal_to_generate_on_prompts_that_hold_it(name: str, sampling: dict[str, Any], prompts: Any) -> None:
    model, call = build(name), dict(max_new_tokens=16, **sampling)
    how: dict[str, Any] = {"drafter": noisy(model, 0.05), "k": 4}
    runs = {
        (behind, batch): stock(model, holding(prompts(batch), CLAUSES, behind), 0, **call)
        for behind, batch in ((0, 3), (1, 3), (0, 1))
    }
    for (behind, batch), expected in runs.items():
        given = prompts(batch)
        with mmspec.enable(model, "ambedkar", condition=CLAUSES, behind=behind, **how) as spec:
            torch.manual_seed(0)
            ours = model.generate(**given, **call)
            state = torch.get_rng_state()
        assert_same_text(ours, given["input_ids"], expected, state)
        assert spec.report is not None and not spec.report.faults and spec.report.drafted
    bare = stock(model, prompts(3), 0, **call)
    assert not torch.equal(bare.ids[:, -16:], runs[0, 3].ids[:, -16:]), "the condition changes nothing"


@pytest.mark.parametrize("condition", [[], ""])
def test_an_empty_condition_is_none(
    target: Any, good: Any, prompts: Callable, theirs: Callable, condition: Any
) -> None:
    call = {"max_new_tokens": 20, "do_sample": True}
    expected = theirs(target, prompts(3), 0, **call)
    with mmspec.enable(target, "ambedkar", drafter=good, condition=condition, k=4) as spec:
        torch.manual_seed(0)
        assert_same(target.generate(**prompts(3), **call), expected, torch.get_rng_state())
    assert spec.report is not None and spec.report.acceptance_length > 1.3


def test_the_wrapped_target(target: Any, prompts: Callable) -> None:
    """Its prompt is the bare one, its states are those of the prompt's tokens, and `truncate` counts these alone."""
    bare, inputs = TransformersTarget(target), prompts(3)
    behind = bare.with_condition(Condition(torch.tensor(CLAUSES), 1)).with_hidden([FINAL])
    assert bare.context is not None and behind.context == bare.context - 5
    assert behind.with_condition(None).context == bare.context and bare.condition is None
    started, whole = behind.start(inputs, 8, 4), holding(inputs, CLAUSES, 1)
    assert torch.equal(started.prompt, inputs["input_ids"]) and started.pads.tolist() == [0, 9, 3]
    with torch.no_grad():
        for row in range(3):
            ids = whole["input_ids"][row][whole["attention_mask"][row].bool()]
            output = target.model(input_ids=ids[None]).last_hidden_state[0]
            kept = torch.cat([output[:1], output[6:]])
            assert started.hidden is not None
            assert torch.allclose(started.hidden[row, started.pads[row] :], kept, atol=1e-4)
    before = started.cache.slots.length.clone()
    behind.truncate(started.cache, 14 - started.pads - 2)
    assert torch.equal(started.cache.slots.length, before - 2)
    assert behind.export(started.cache, inputs["input_ids"], torch.ones(3)) is None


def test_what_is_refused(target: Any, good: Any, prompts: Callable) -> None:
    behind = TransformersTarget(target)
    with pytest.raises(ValueError, match=r"a prompt of 5 units has no place .* behind its first 6"):
        behind.with_condition(Condition(torch.tensor([3]), 6)).start(prompts(3), 4, 4)
    with pytest.raises(ValueError, match="outside the model's vocabulary"):
        behind.with_condition(Condition(torch.tensor([3, 500])))
    with pytest.raises(ValueError, match="one row of ids"):
        behind.with_condition(Condition(torch.tensor([[3], [4]])))
    with pytest.raises(ValueError, match=r"ids and padding alone: leave out earlier turns"):
        positions = torch.arange(14).expand(3, -1) + 7
        behind.with_condition(Condition(torch.tensor([3]))).start({**prompts(3), "position_ids": positions}, 4, 4)
    with pytest.raises(ValueError, match=r"ambedkar needs what the target reads"):
        mmspec.enable(target, "ambedkar", drafter=good)
    with pytest.raises(ValueError, match=r"ambedkar needs a smaller model"):
        mmspec.enable(target, "ambedkar", condition=[3])
    with pytest.raises(ValueError, match=r"tokenizer, which a condition in words needs"):
        mmspec.enable(target, "ambedkar", drafter=good, condition="All persons are equal before the law.")
    with pytest.raises(ValueError, match=r"MarkovTarget does not read"):
        drafting([2]).wrap(MarkovTarget.random(7, 0))
