"""One shape per call, in half precision: texts of the shipped hybrid equal plain decoding of that width."""

import warnings
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import mmspec
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.hosts.slot_cache import SlotCache
from tests.support.zoo import build
from tools.bench.one_shape.cells import Cell
from tools.bench.one_shape.command import SSM
from tools.bench.one_shape.texts import Texts

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
            assert not any("no promise to the bit" in str(warning.message) for warning in told)
            assert spec.report is not None and set(spec.report.sizes) == {9}
    assert torch.equal(*outputs)


def test_a_tree_keeps_a_near_tie() -> None:
    """With float32 states, of which rounds keep other numbers of units at once, this text parted after 51 units."""
    subject = Texts("mmspec/ssm-5m", new=56)
    cell = Cell("stree", "bfloat16", "one", "T = 0.8", 1, 1, SSM["stree"])
    drafted = subject.decoder("bfloat16", "stree", "one", **SSM["stree"])
    plain = subject.decoder("bfloat16", "plain", drafted.one_width())
    ((ours,), report), ((theirs,), _) = (next(iter(subject.outputs(each, cell))) for each in (drafted, plain))
    assert report.acceptance_length > 2
    assert torch.equal(ours, theirs)


def test_float32_states_promise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device where float64 costs too much."""
    monkeypatch.setattr(SlotCache, "exact", False)
    model: Any = build("bamba")
    with (
        mmspec.enable(model, "prompt-lookup", shape="one") as spec,
        pytest.warns(UserWarning, match=r"no promise to the bit here .* 191 of 210"),
    ):
        model.generate(torch.tensor([[3, 4, 5, 3, 4]]), max_new_tokens=4, do_sample=False)
    assert spec.report.width is None and "to the bit" not in spec.report.shape


def test_float64_stays_inside() -> None:
    """The cache that a call leaves has transformers' dtype, and a turn over that cache goes on in float64."""
    model: Any = build("bamba")
    cache = DynamicCache(config=model.config)
    ids = torch.tensor([[3, 4, 5, 3, 4]])
    for _ in range(2):
        with mmspec.enable(model, "prompt-lookup", shape="one"):
            ids = model.generate(ids, past_key_values=cache, max_new_tokens=6, do_sample=False)
        states = [s for layer in cache.layers for s in (getattr(layer, "recurrent_states", None) or {}).values()]
        assert states and all(state.dtype == torch.float32 for state in states)
    with mmspec.enable(model, "plain"):
        assert torch.equal(model.generate(ids[:, :5], max_new_tokens=12, do_sample=False), ids)
