"""One shape per call, in half precision: texts of the shipped hybrid equal plain decoding of that width."""

import warnings
from typing import Any

import pytest
import torch

import mmspec
from mmspec.hosts.loading import load_model, load_tokenizer

TEXTS = ["class Stack:\n    def", "import os\n", "KING RICHARD:\nWhat say you"]


@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_texts_equal_plain_of_one_width(batch: int) -> None:
    model: Any = load_model("mmspec/ssm-5m", "cpu", torch.bfloat16)
    inputs = load_tokenizer("mmspec/ssm-5m")(
        TEXTS[:batch], return_tensors="pt", padding=True, return_token_type_ids=False
    )
    outputs = []
    for method, how in (("suffix", {"k": 8, "shape": "one"}), ("plain", {"shape": 9})):
        with warnings.catch_warnings(record=True) as told, mmspec.enable(model, method, seed=1, **how) as spec:
            warnings.simplefilter("always")
            ids = model.generate(**inputs, max_new_tokens=48, do_sample=True, top_k=0, temperature=0.8)
            outputs.append(ids)
            assert any("no promise to the bit" in str(warning.message) for warning in told)
            assert spec.report is not None and set(spec.report.sizes) == {9}
    assert torch.equal(*outputs)
