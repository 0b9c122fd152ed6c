"""peft: generation goes through the adapter's wrapper; the wrapper or the model inside may be the one enabled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

peft = pytest.importorskip("peft")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.compiled
def test_lora(model: Any, tokenizer: Any, both: Callable, inside: bool) -> None:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config).eval()
    inputs = tokenizer("def area(radius):", return_tensors="pt")
    call = dict(max_new_tokens=40, do_sample=True, temperature=0.7)
    report = both(model if inside else wrapped, lambda: wrapped.generate(**inputs, **call).tolist())
    assert report.drafted > 0


def test_an_adapter_a_row(model: Any, tokenizer: Any, both: Callable) -> None:
    """peft's hooks for the rows of a call: equal prompts go on differently, and no hook stays."""
    torch.manual_seed(1)
    config = {"r": 4, "task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**config), "one")
    wrapped.add_adapter("two", peft.LoraConfig(**config))
    wrapped.eval()
    inputs = tokenizer(["def area(radius):"] * 3, return_tensors="pt")
    for rows, names in ((3, ["one", "__base__", "two"]), (1, ["two"])):
        given = {name: ids[:rows] for name, ids in inputs.items()}
        call = dict(**given, adapter_names=names, max_new_tokens=30, do_sample=False)
        report = both(wrapped, lambda call=call: wrapped.generate(**call).tolist())
        assert report.drafted > 0
    assert not any(module._forward_pre_hooks for module in wrapped.modules())
