"""Wrapped models: adapters, offloaded layers, models compiled in place."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from transformers import AutoModelForCausalLM

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.hosts.masks import PassGeometry, added

CALL = dict(do_sample=True, top_k=0, max_new_tokens=20)


def same_under(model: Any, plain: Any, inputs: Any) -> None:
    """With good drafts, so that passes over several nodes are compared."""
    run = stock(model, inputs, 0, **CALL)
    with mmspec.enable(model, "draft-model", drafter=plain, k=4) as spec:
        torch.manual_seed(0)
        ids = model.generate(**inputs, **CALL)
        assert spec.report is not None and spec.report.acceptance_length > 1.2
    assert_same(ids, run, torch.get_rng_state())
    assert "generate" not in model.__dict__


def test_lora_adapters_are_part_of_the_target(make_llama: Callable, prompts: Callable) -> None:
    from peft import LoraConfig, get_peft_model

    bare, inputs = make_llama(), prompts(3)
    before = bare(**inputs).logits
    torch.manual_seed(1)
    config = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(make_llama(), config).eval()
    assert not torch.allclose(model(**inputs).logits, before, atol=1e-2), "the adapter does nothing"
    same_under(model, bare, inputs)


def test_prompt_learning_is_refused(make_llama: Callable) -> None:
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(make_llama(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    with pytest.raises(ValueError, match="prompt learning puts units of its own before the prompt"):
        mmspec.enable(model, "plain")


def test_layers_on_disk(make_llama: Callable, prompts: Callable, tmp_path: Path) -> None:
    model = make_llama()
    model.save_pretrained(tmp_path / "model")
    names = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
    places = {**dict.fromkeys(names, "cpu"), "model.layers.1": "disk"}
    spread = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload"
    )
    assert spread.model.layers[1].mlp.up_proj.weight.device.type == "meta"
    same_under(spread, model, prompts(3))


@pytest.mark.parametrize("way", ["cpu", "disk"])
def test_layers_that_are_loaded_for_a_pass_alone(
    make_llama: Callable, prompts: Callable, tmp_path: Path, way: str
) -> None:
    """accelerate keeps all weights elsewhere, and the model says that it is on the device `meta`."""
    plain, model, inputs = make_llama(num_hidden_layers=4), make_llama(num_hidden_layers=4), prompts(3)
    device = torch.device("cpu")
    accelerate.cpu_offload(model, device) if way == "cpu" else accelerate.disk_offload(model, str(tmp_path), device)
    assert model.device.type == "meta"
    same_under(model, plain, inputs)
    call = dict(**inputs, max_new_tokens=8, do_sample=False)
    right = plain.generate(**call)
    for method in ("plain", "prompt-lookup", "swift", "layer-skip", "auto"):
        with mmspec.enable(model, method):
            assert torch.equal(model.generate(**call), right)
    with mmspec.enable(model, "plain", compile=True), pytest.warns(UserWarning, match="weights .* move"):
        assert torch.equal(model.generate(**call), right)


def test_a_model_without_numbers_is_refused(make_llama: Callable) -> None:
    with pytest.raises(ValueError, match="'meta', where there are no numbers"):
        mmspec.enable(make_llama().to("meta"), "plain")


@pytest.mark.slow
def test_a_model_compiled_in_place(make_llama: Callable, prompts: Callable) -> None:
    model, plain = make_llama(), make_llama()
    model.compile()
    same_under(model, plain, prompts(1))


def test_threads_share_a_model_one_by_one(make_llama: Callable, prompts: Callable) -> None:
    model, inputs, made = make_llama(sliding_window=None, hidden_size=32), prompts(1), []
    call = dict(do_sample=False, max_new_tokens=20)
    right = model.generate(**inputs, **call)
    with mmspec.enable(model, "prompt-lookup"):
        threads = [
            threading.Thread(target=lambda: made.extend(model.generate(**inputs, **call) for _ in range(4)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 12 and all(torch.equal(ids, right) for ids in made)
    assert torch.equal(model.generate(**inputs, **call), right)


def test_masks_that_move_with_a_layer_are_not_kept() -> None:
    """Every layer on another device brings a copy of its own: kept ones would fill memory, and never be found again."""
    geometry = PassGeometry(torch.tensor([3]), torch.ones(1, 2, 2, dtype=torch.bool).tril(), torch.arange(2)[None], 64)
    mask = geometry.tree
    form = 4, torch.float32
    assert geometry.shared(added, mask, *form) is geometry.shared(added, mask, *form)
    for _ in range(5):
        moved = geometry.shared(added, mask.to("meta"), *form)
        assert moved.device.type == "meta" and moved.shape == (1, 1, 8, 64)
    assert len(geometry._made) == 1
