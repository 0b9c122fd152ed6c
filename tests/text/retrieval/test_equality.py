"""Texts drafted from a datastore are those of unmodified `generate`, on six families of architectures."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec.compare.equality import assert_same, stock
from tests.support.zoo import build, noisy

SLOW = ["falcon-new", "gpt2", "mistral", "qwen3_moe"]
NAMES = ["llama", "gemma2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.thinned
@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "top_k": 0, "temperature": 0.8}])
@pytest.mark.parametrize("method", ["rest", "rasd"])
@pytest.mark.parametrize("name", NAMES)
def test_texts_are_those_of_generate(name: str, method: str, sampling: dict[str, Any], prompts: Any) -> None:
    model, call = build(name), {"max_new_tokens": 24, **sampling}
    run = stock(model, prompts(3), 0, **call)
    drafter = {"drafter": noisy(model, 0.05)} if method == "rasd" else {}
    # The datastore has the text itself, which is found, and another that leads astray.
    other = [(7 * unit) % 40 + 1 for unit in range(80)]
    with mmspec.enable(model, method, corpus=[*run.ids.tolist(), other], min_match=1, k=4, **drafter) as spec:
        torch.manual_seed(0)
        assert_same(model.generate(**prompts(3), **call), run, torch.get_rng_state())
    assert spec.report.acceptance_length > 1.5 and not spec.report.faults
