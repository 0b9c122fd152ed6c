"""`ppd-model`: texts are the target's, drafts the draft model's, the draft model's cache the text, its passes fewer."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_text.drafters.ppd import Prompts
from mmspec_text.drafters.ppd_model import PPDModel, PPDModelOptions
from tests.support import random_models
from tests.support.cycle import Cycle
from tests.support.examples.zoo import letters


def prompts() -> Prompts:
    width = random_models.small().get_input_embeddings().weight.shape[1]
    return Prompts("random", torch.randn(3, width, generator=torch.Generator().manual_seed(0)) * 0.02)


def drafter(**options: Any) -> PPDModel:
    given = {"model": random_models.small(), "prompts": prompts(), "budget": 12, "rates": ((0.5, 0.3), (0.5, 0.2))}
    return PPDModel(PPDModelOptions(**given | options))


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8}], ids=str)
def test_equal_to_unmodified_generate(sampling: dict[str, Any]) -> None:
    model, call = tiny_models.llama(), dict(max_new_tokens=20, **sampling)
    runs = [(given, stock(model, given, 0, **call)) for given in map(tiny_models.prompt, ([0, 1, 2], [1]))]
    with mmspec.enable(model, drafter=drafter(), k=4) as spec:
        for given, expected in runs:
            torch.manual_seed(0)
            assert_same(model.generate(**given, **call), expected, torch.get_rng_state())
            assert spec.report is not None and spec.report.acceptance_length > 1 and not spec.report.faults


@pytest.mark.parametrize("budgets", [(4,), (5, 1, 3), (2, 0, 4)], ids=str)
def test_its_drafts_are_the_draft_models(budgets: tuple[int, ...]) -> None:
    """Round by round, in rows of several lengths: what a plain draft model drafts with the same noise."""
    target, found = TransformersTarget(tiny_models.llama()), []
    for one in (drafter(), DraftModel(TransformersTarget(random_models.small(), drafting=True))):
        decoder, drafts = Decoder(target, one, k=5, policy=Cycle(*budgets)), []
        state = decoder.start(tiny_models.prompt([0, 1, 2]), 24, seed=3, warp=Warp.sampling())
        while not state.finished:
            decoder.advance(state)
            assert state.step is not None
            drafts.append(state.step.draft.units[state.step.draft.valid])
        assert not state.report.faults
        found.append(drafts)
    assert len(found[0]) == len(found[1]) and all(map(torch.equal, *found))


def test_a_round_begins_with_prompt_tokens_and_in_the_cache_of_the_last_one() -> None:
    """Behind the first round the first pass has a draft, and the draft model reads nothing that it had read."""
    decoder = Decoder(TransformersTarget(tiny_models.llama()), drafter(), k=4)
    state, read = decoder.start(tiny_models.prompt([0]), 60, seed=3), list[int]()
    embedding = random_models.small().get_input_embeddings()
    hook = embedding.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[1]))
    for number in range(6):
        decoder.advance(state)
        inner = state.memory
        passes, lacked = inner.report.rounds, 2 if number and state.step.verdict.length == 4 else 1
        assert int(inner.cache.slots.length) == int(inner.known) - 1
        if number:
            assert inner.report.drafted > 0 and passes + 1 <= len(read) <= passes + lacked + 1
            assert max(read) <= 12 + 4
        read.clear()
    hook.remove()


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="ppd-model needs the draft model's prompt tokens"):
        PPDModel(PPDModelOptions(model=random_models.small()))
    with pytest.raises(ValueError, match="ppd-model needs a smaller model"):
        PPDModel(PPDModelOptions(prompts=prompts()))
    other = random_models.random_model(LlamaConfig(**{**tiny_models.SIZES, "vocab_size": 5}), seed=5)
    named = drafter(model=other, tokenizer=letters(), assistant_tokenizer=letters())
    with pytest.raises(ValueError, match="has another tokenizer than the target"):
        Decoder(TransformersTarget(tiny_models.llama()), named)
