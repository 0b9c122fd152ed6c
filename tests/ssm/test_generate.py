"""Recurrent models under `mmspec.enable`: the text of unmodified transformers, whoever drafts."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import mmspec
from mmspec.compare.equality import Stock, assert_same, stock
from tests.support.zoo import RECURRENT, build, noisy
from tests.support.zoo.recipe import scaled

FAST = ["mamba2", "bamba", "mamba", "falcon_mamba", "jamba", "falcon_h1"]
CALLS: dict[str, dict[str, Any]] = {
    "greedy": dict(do_sample=False, max_new_tokens=20),
    "sampled": dict(do_sample=True, top_k=0, temperature=0.8, max_new_tokens=20),
}
METHODS = {
    "prompt-lookup": {},
    "token-recycling": {},
    "draft-tree": {"drafter": 0.02, "k": 4},
    "suffix": {},
    "plain": {},
    "draft-model": {"drafter": 0.02, "k": 3},
    "lookup-recycling": {"drafter": "lookup-recycling"},
    "cascade": {"budget": 16, "sinks": 2},
}
BOTH = ("prompt-lookup", "draft-tree")
QUICK = {(name, method) for name in FAST for method in BOTH} | {
    ("bamba", method) for method in ("plain", "suffix", "token-recycling", "draft-model")
}
CASES = [
    pytest.param(name, method, marks=[] if (name, method) in QUICK else [pytest.mark.slow])
    for name in RECURRENT
    for method in METHODS
]
"""A chain and a tree of six models, every kind of method of one; all of all in the slow tier."""


def prompts(batch: int = 3) -> dict[str, Tensor]:
    """Rows of several lengths, padded on the left, with repeats that lookup can find."""
    ids = torch.randint(3, 131, (batch, 7), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    mask = torch.arange(14) >= 14 - torch.tensor([14, 5, 11])[:batch, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


@lru_cache(maxsize=2)
def model_of(name: str) -> Any:
    return build(name)


@lru_cache(maxsize=4)
def theirs(name: str, call: str) -> Stock:
    return stock(model_of(name), prompts(), 0, **CALLS[call])


def spec(name: str, method: str) -> dict[str, Any]:
    """Arguments of `enable`: a number as drafter is a copy of the model that is off by so much."""
    given = dict(METHODS[method])
    if isinstance(given.get("drafter"), float):
        given["drafter"] = noisy(model_of(name), given["drafter"])
    return given if method == "lookup-recycling" else {"method": method, **given}


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("name", "method"), CASES)
@pytest.mark.compiled
def test_equals_transformers(name: str, method: str) -> None:
    """Greedy and sampled, a ragged batch, and torch's generator left where transformers leaves it."""
    model, runs = model_of(name), {call: theirs(name, call) for call in CALLS}
    accepted = []
    with mmspec.enable(model, **spec(name, method)) as enabled:
        for call, run in runs.items():
            torch.manual_seed(0)
            ids = model.generate(**prompts(), **CALLS[call])
            assert_same(ids, run, torch.get_rng_state())
            assert enabled.report is not None
            accepted.append(enabled.report.acceptance_length)
    if method in ("draft-tree", "draft-model"):
        assert max(accepted) > 1.2, "nothing was accepted, so nothing was tested"


@pytest.mark.parametrize("name", ["mamba2", "jamba"])
@pytest.mark.compiled(inductor=True)
def test_rows_end_at_different_times(name: str) -> None:
    """Ends inside accepted paths; finished rows keep nothing while the others go on."""
    model, run = model_of(name), theirs(name, "greedy")
    ends = [int(run.ids[0, 14 + 6]), int(run.ids[2, 14 + 11])]
    call = dict(CALLS["greedy"], eos_token_id=ends, pad_token_id=0)
    expected = stock(model, prompts(), 0, **call)
    with mmspec.enable(model, **spec(name, "draft-tree")):
        assert_same(model.generate(**prompts(), **call), expected)


def test_a_conversation_of_a_model_whose_layers_have_heads() -> None:
    """Zamba runs an operation for every head, and keeps their states as one."""
    model, ids = build("zamba"), prompts(1)["input_ids"]
    call = dict(do_sample=False, max_new_tokens=8)
    with mmspec.enable(model, "plain"):
        first = model.generate(ids, **call, return_dict_in_generate=True)
        longer = torch.cat([first.sequences, ids[:, :3]], 1)
        second = model.generate(longer, **call, past_key_values=first.past_key_values)
    assert torch.equal(first.sequences, model.generate(ids, **call))
    assert torch.equal(second, model.generate(longer, **call))


PROJECTED, BIASED, CONVOLVED = (dict.fromkeys([name], True) for name in ("mamba_proj_bias", "use_bias", "conv_bias"))
LEAKS = {
    **dict.fromkeys(("bamba", "jamba", "falcon_h1", "zamba"), PROJECTED),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "nemotron_h"), BIASED),
    **dict.fromkeys(("lfm2_moe", "lfm3"), CONVOLVED),
}
"""The settings under which transformers lets padding into a convolution."""


def leaking(name: str, size: float) -> Any:
    """A model of the zoo with random biases of a size."""
    recipe = RECURRENT[name]
    model = scaled(replace(recipe, config={**recipe.config, **LEAKS[name]}).model())
    for key, weight in model.named_parameters():
        if key.endswith("bias"):
            weight.data.normal_(std=size, generator=torch.Generator().manual_seed(3))
    return model


def test_a_small_leak_is_seen_in_half_precision() -> None:
    """It is a twentieth of the largest logit, which is less than one logit may be off by rounding."""
    model = leaking("mamba2", 0.02).to(torch.bfloat16)
    ids = torch.randint(3, 120, (1, 3), generator=torch.Generator().manual_seed(0))
    padded = {"input_ids": pad(ids, (5, 0)), "attention_mask": pad(torch.ones_like(ids), (5, 0))}
    apart = (model(**padded).logits[:, -1] - model(ids).logits[:, -1]).abs().max() / model(ids).logits.abs().max()
    assert apart < 0.08
    with mmspec.enable(model, "plain"), pytest.raises(ValueError, match="depends on the padding"):
        model.generate(**padded, max_new_tokens=4)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("mamba2", "lfm3") else [pytest.mark.slow]) for n in LEAKS]
)
def test_padding_behind_a_bias_is_refused(name: str) -> None:
    model = leaking(name, 1.0)
    inputs, call = prompts(2), CALLS["greedy"]
    with mmspec.enable(model, "prompt-lookup"):
        with pytest.raises(ValueError, match=r"in a padded row depends on the padding .* as in the row alone"):
            model.generate(**inputs, **call)
        whole = {key: value[:1].repeat(2, 1) for key, value in inputs.items()}
        ids = model.generate(**whole, **call)
    assert_same(ids, stock(model, whole, 0, **call))
