"""`num_return_sequences`: a prompt is read once for all of its samples, which draft from each other's text."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import mmspec
from mmspec.api.build import decoder_for
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.hidden import FINAL
from mmspec.core.warp import Warp
from mmspec.hosts.call_prefill import Distinct
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.suffix import Suffix, SuffixOptions
from tests.support.zoo import build

SLOW = ("falcon-new", "mistral", "gemma2", "qwen3_moe", "mamba", "bamba")
NAMES = ["llama", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
SAMPLED = dict(do_sample=True, temperature=0.8, max_new_tokens=20)


def counting() -> MarkovTarget:
    """A model of ten units, each of which follows the one below it."""
    table = torch.zeros(10, 10, 10)
    for unit in range(10):
        table[:, unit, (unit + 1) % 10] = 5.0
    return MarkovTarget(table)


@pytest.mark.parametrize("siblings", [True, False])
def test_four_rounds_by_hand(siblings: bool) -> None:
    """Rows A and B have the prompt 0 1, row C has 3 1; each begins with 2. What they go on with is given.

    Rounds 1 and 2: no row's last unit occurred before with a follower: no drafts. A is given 5, 1, B 6, 2, C 7, 2.
    Round 3: A ends in 1, which 2 followed in A and in B; then 5 in A and 6 in B, of which its own is taken: 2 5 1.
      B ends in 2, after which came 5 1 in A and 6 2 in B: its own. C ends in 2, after which 7 2 came: it has nothing of
      A and B.
        A takes the 2 and is given 6, B is given 5, C takes 7 2.
    Round 4: A ends in 2 6, which B went on with to 2 5, and B in 2 5, which A went on with to 1 2 6: by itself neither
      has anything.
    """
    options = SuffixOptions(max_match=2, factor=8, threshold=0.0, siblings=siblings)
    decoder = Decoder(counting(), Suffix(options), k=3)
    state = decoder.start(torch.tensor([[0, 1], [0, 1], [3, 1]]), 20, warp=Warp.sampling(temperature=0))
    drafts, counts = [], []
    for given in ([[5], [6], [7]], [[1], [2], [2]], [[2, 6, 7], [5, 0, 0], [7, 2, 0]], [[0, 0, 0]] * 3):
        decoder.advance(state, torch.tensor(given))
        assert state.step is not None
        draft = state.step.draft
        drafts.append([units[valid].tolist()[1:] for units, valid in zip(draft.units, draft.valid, strict=True)])
        counts.append(state.step.count.tolist())
    assert drafts[:2] == [[[], [], []]] * 2
    if siblings:
        assert drafts[2:] == [[[2, 5, 1], [6, 2], [7, 2]], [[2, 5], [1, 2, 6], []]]
    else:
        assert drafts[2:] == [[[2, 5, 1], [6, 2], [7, 2]], [[], [], []]]
    assert counts == [[1, 1, 1], [1, 1, 1], [2, 1, 3], [1, 1, 1]]


@pytest.mark.thinned(1)
@pytest.mark.compiled
@pytest.mark.parametrize("batch", [3, 1])
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_unmodified_generate(name: str, batch: int, prompts: Callable) -> None:
    model, call = build(name), {**SAMPLED, "num_return_sequences": 4}
    run = stock(model, prompts(batch), 0, **call)
    with mmspec.enable(model, "suffix", k=5, threshold=0.01) as spec:
        torch.manual_seed(0)
        assert_same(model.generate(**prompts(batch), **call), run, torch.get_rng_state())
    assert spec.report.prompts == batch and spec.report.drafted and not spec.report.faults
    assert f"prompts read: {batch} for {4 * batch} rows" in str(spec.report)


def test_samples_that_agree_help_each_other(target: Any, prompts: Callable, ours: Callable) -> None:
    """At a low temperature many texts are alike, and the rows that are ahead have written what others will."""
    call = dict(do_sample=True, temperature=0.3, top_k=0, max_new_tokens=60, num_return_sequences=8)
    reports = [ours(target, prompts(2), 0, dict(method="suffix", siblings=on), **call) for on in (True, False)]
    together, alone = reports
    assert torch.equal(together.ids, alone.ids) and torch.equal(together.state, alone.state)
    assert together.report.acceptance_length > alone.report.acceptance_length


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("llama", True), pytest.param("gemma2", False, marks=pytest.mark.slow), ("mamba", False)],
)
def test_what_rows_begin_with_is_to_the_bit_a_prefill_of_the_prompts(
    name: str, hidden: bool, prompts: Callable
) -> None:
    target = decoder_for(build(name), "plain").target
    target = target.with_hidden([0, FINAL]) if hidden else target
    given, rows = prompts(3), torch.tensor([0, 1, 0, 2, 1, 1])
    once = target.start(given, 30, 4)
    several = target.start({name: value[rows] for name, value in given.items()}, 30, 4)
    assert (once.prompts, several.prompts) == (None, 3)
    assert torch.equal(several.output.logits, once.output.logits[rows])
    assert torch.equal(several.prompt, once.prompt[rows]) and torch.equal(several.pads, once.pads[rows])
    if hidden:
        assert torch.equal(several.hidden, once.hidden[rows])
    ours, theirs = several.cache.slots, once.cache.slots
    assert torch.equal(ours.length, theirs.length[rows]) and ours.begun == [theirs.begun[row] for row in rows]
    for mine, its in zip(ours.owning, theirs.owning, strict=True):
        assert torch.equal(mine.keys, its.keys[rows]) and torch.equal(mine.values, its.values[rows])
    for number, layer in ours.recurrent.items():
        for kind in ("conv", "recurrent"):
            for order, states in layer.states(kind).items():
                assert torch.equal(states, theirs.recurrent[number].states(kind)[order][rows])


def test_which_rows_have_one_prompt() -> None:
    """Ids under the mask do not count, and ids that are padding in one row and a unit in another do."""
    ids = torch.tensor([[0, 5, 6], [9, 5, 6], [0, 5, 6], [0, 5, 7], [0, 5, 6]])
    mask = torch.tensor([[0, 1, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]])
    found = Distinct.of(ids, mask)
    assert found.prompt.tolist() == [0, 0, 1, 2, 1] and found.repeated
    assert torch.equal(found.ids, ids[[0, 2, 3]]) and torch.equal(found.mask, mask[[0, 2, 3]])
    assert not Distinct.of(ids[1:4], mask[1:4]).repeated


def test_negative_prompts_are_read_once_too(target: Any, prompts: Callable, ours: Callable) -> None:
    """Guidance leads away from the last units of the prompts, three others."""
    call = {**SAMPLED, "num_return_sequences": 2, "guidance_scale": 1.5}
    run = stock(target, prompts(3), 0, **call)
    mine = ours(target, prompts(3), 0, dict(method="suffix"), **call)
    assert_same(mine.ids, run, mine.state)
    assert mine.report.prompts == 6 and mine.report.rows == 6


@pytest.mark.parametrize("given", [True, False])
def test_caches_that_are_returned(target: Any, prompts: Callable, given: bool) -> None:
    call = {**prompts(3), **SAMPLED, "num_return_sequences": 2, "return_dict_in_generate": True}

    def run() -> Any:
        torch.manual_seed(0)
        return target.generate(**call, **({"past_key_values": DynamicCache()} if given else {}))

    theirs = run()
    with mmspec.enable(target, "suffix") as spec:
        mine = run()
    assert torch.equal(theirs.sequences, mine.sequences) and spec.report.prompts == 3
    new = slice(call["input_ids"].shape[1], None)  # unmodified models fill the columns of padding, too
    for their, our in zip(theirs.past_key_values.layers, mine.past_key_values.layers, strict=True):
        assert torch.allclose(our.keys[:, :, new], their.keys[:, :, new], atol=1e-4)
        assert torch.allclose(our.values[0], their.values[0], atol=1e-4)


def test_in_half_precision_samples_equal_those_of_plain_decoding_of_one_width() -> None:
    model, tokenizer = load_model("mmspec/text-1m", "cpu", torch.bfloat16), load_tokenizer("mmspec/text-1m")
    ids = tokenizer("class Stack:\n    def", return_tensors="pt")["input_ids"]
    inputs = {"input_ids": ids.repeat(4, 1), "attention_mask": torch.ones_like(ids).repeat(4, 1)}
    decoder = decoder_for(model, "suffix", k=5, shape="one")
    plain = Decoder(decoder.target, shape=decoder.one_width())
    ours, theirs = (each.generate(inputs, 40, seed=3, warp=Warp.sampling(0.8)) for each in (decoder, plain))
    assert ours.report.accepted and ours.report.prompts == theirs.report.prompts == 1
    assert [units.tolist() for units in ours.units] == [units.tolist() for units in theirs.units]


def test_allowed_tokens_are_asked_for_by_row(target: Any, good: Any, prompts: Callable, ours: Callable) -> None:
    """transformers asks with the number of the row: without beams, samples of a prompt have numbers of their own."""
    asked = set[int]()

    def allowed(row: int, ids: Tensor) -> list[int]:
        asked.add(row)
        return list(range(5 + int(ids[-1]) % 3 + row // 2, 120, 2))

    allowed.speculative = "history"  # type: ignore[attr-defined]
    call = {**SAMPLED, "prefix_allowed_tokens_fn": allowed, "num_return_sequences": 2}
    run = stock(target, prompts(3), 0, **call)
    assert asked == set(range(6))
    asked.clear()
    mine = ours(target, prompts(3), 0, {"drafter": good, "k": 4}, **call)
    assert_same(mine.ids, run, mine.state)
    assert mine.report.accepted > 0 and mine.report.prompts == 3 and asked == set(range(6))
