"""`generate(guidance_scale=, negative_prompt_ids=)`: two halves of one batch, and unmodified transformers' own ids."""

import warnings

import pytest
import torch
from transformers import LogitsProcessorList, WatermarkingConfig

import mmspec
from tests.support.examples.written import tiny_emu3 as emu3

METHODS = ("plain", "token-recycling", "prompt-lookup", "draft-model")


def prompts(rows: int) -> dict[str, torch.Tensor]:
    """Prompts of two lengths, and shorter ones to lead away from."""
    ids = torch.randint(3, 140, (rows, 9), generator=torch.Generator().manual_seed(rows))
    mask = torch.ones_like(ids)
    mask[1:2, :3] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "negative_prompt_ids": ids[:, 5:]}


def drawn(model, **arguments):
    """Ids, and the state in which the call leaves torch's generator."""
    torch.manual_seed(3)
    return model.generate(**{"max_new_tokens": 20, "do_sample": True, "guidance_scale": 2.0, **arguments}), (
        torch.get_rng_state()
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_guided_call_is_drafted_and_equals_stock(method):
    model = emu3()
    expected, state = drawn(model, **prompts(3))
    options = {"model": model} if method == "draft-model" else {}
    with mmspec.enable(model, method, **options) as spec, warnings.catch_warnings():
        warnings.simplefilter("error")
        found, after = drawn(model, **prompts(3))
    assert torch.equal(found, expected)
    assert torch.equal(after, state)
    assert (spec.report.rounds < 10) == (method == "draft-model")  # itself: it drafts under the same guidance


class Squared:
    """A user's processor that reads the level of scores."""

    speculative = "elementwise"

    def __call__(self, ids, scores):
        return -0.1 * scores.square()


LEVELS = {
    "repetition penalty": {"repetition_penalty": 1.3},
    "penalty of the prompt's ids": {"encoder_repetition_penalty": 1.4},
    "growing chance of an end": {"exponential_decay_length_penalty": (4, 1.3), "eos_token_id": 7, "pad_token_id": 0},
    "a user's processor": {"logits_processor": LogitsProcessorList([Squared()])},
    "bias": {"sequence_bias": {(5,): 3.0, (9, 4): -2.0}},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=3.0)},
    "several": {"repetition_penalty": 0.8, "renormalize_logits": True, "top_k": 40, "temperature": 0.7},
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("negative", [True, False])
@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("settings", LEVELS.values(), ids=LEVELS)
def test_processors_that_read_the_level_of_scores(settings, sample, negative):
    """transformers guides log-probabilities; raw logits have another level, which a penalty multiplies."""
    model, given = emu3(), {**prompts(2), "do_sample": sample, **settings}
    if not negative:
        del given["negative_prompt_ids"]
    expected, state = drawn(model, **given)
    with mmspec.enable(model, "draft-model", model=model):
        found, after = drawn(model, **given)
    assert torch.equal(found, expected)
    assert torch.equal(after, state)


def test_without_a_negative_prompt_the_last_token_stands_for_it():
    model, given = emu3(), prompts(1)
    del given["negative_prompt_ids"]
    expected, _ = drawn(model, **given)
    with mmspec.enable(model, "draft-model", model=model) as spec:
        found, _ = drawn(model, **given)
    assert torch.equal(found, expected)
    assert spec.report.rounds < 10


def test_a_padded_negative_prompt_longer_than_the_prompt():
    model, given = emu3(), prompts(2)
    given["negative_prompt_ids"] = torch.cat([given["input_ids"], given["input_ids"]], 1)
    given["negative_prompt_attention_mask"] = mask = torch.ones_like(given["negative_prompt_ids"])
    mask[0, :4] = 0
    expected, _ = drawn(model, **given)
    with mmspec.enable(model, "draft-model", model=model) as spec:
        found, _ = drawn(model, **given)
    assert torch.equal(found, expected)
    assert spec.report.rounds < 10


def test_a_call_that_returns_scores_keeps_its_processor():
    model = emu3()
    how = {**prompts(1), "max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True}
    expected, _ = drawn(model, **how)
    with mmspec.enable(model, "token-recycling"), pytest.warns(UserWarning, match="without drafts"):
        found, _ = drawn(model, **how)
    assert torch.equal(found.sequences, expected.sequences)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found.scores, expected.scores, strict=True))
