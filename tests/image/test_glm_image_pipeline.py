"""diffusers' `GlmImagePipeline` under `mmspec.enable`: its codes are the stock pipeline's for the same generator."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline
from torch import Tensor
from transformers import BatchEncoding

import mmspec
from tests.support.examples.written import glm_prompt, tiny_glm_image

CELL = 32
"""Pixels of a code."""
METHODS = [
    ("gs-sjd", {"k": 12}),
    pytest.param("token-recycling", {}, marks=pytest.mark.slow),
    pytest.param("gs-sjd-pac", {"k": 8}, marks=pytest.mark.slow),
]


class Processor:
    """The processor's one call that the pipeline makes: prompts of several lengths that ask for one size."""

    def apply_chat_template(self, messages: Any, target_h: int, target_w: int, **kwargs: Any) -> BatchEncoding:
        picture = target_h // CELL, target_w // CELL
        return BatchEncoding(glm_prompt(range(len(messages)), picture, (picture[0] // 2, picture[1] // 2)))


@pytest.fixture
def pipe() -> GlmImagePipeline:
    """The part of the pipeline that writes codes."""
    others = dict.fromkeys(("tokenizer", "text_encoder", "vae", "transformer"))
    model, scheduler = tiny_glm_image(), FlowMatchEulerDiscreteScheduler()
    model.generation_config.eos_token_id = None
    return GlmImagePipeline(processor=Processor(), vision_language_encoder=model, scheduler=scheduler, **others)


def codes(pipe: GlmImagePipeline, prompts: list[str], seed: int) -> tuple[Tensor, Tensor]:
    """Codes as the transformer gets them, and the state in which torch's generator is left."""
    torch.manual_seed(1)
    found = pipe.generate_prior_tokens(prompts, 6 * CELL, 8 * CELL, generator=torch.Generator().manual_seed(seed))
    return found[0], torch.get_rng_state()


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_codes_and_generator_are_the_stock_pipelines(pipe: Any, method: str, options: dict[str, Any]) -> None:
    prompts = ["a cat", "a dog on a chair", "a house"]
    stock = codes(pipe, prompts, seed=5)
    with mmspec.enable(pipe, method, **options) as spec:
        ours = codes(pipe, prompts, seed=5)
        other = codes(pipe, prompts, seed=6)
        assert list(spec.components) == ["vision_language_encoder"]
        assert spec.reports["vision_language_encoder"].rounds > 0
    assert stock[0].shape == (3, 12 * 16), "diffusers doubles the grid"
    assert torch.equal(ours[0], stock[0]) and torch.equal(ours[1], stock[1])
    assert not torch.equal(other[0], stock[0])


def test_a_folder_of_its_language_model_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    tiny_glm_image().config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not read")
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["GlmImageForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'image:glm-image' has no pipeline; use mmspec\\.enable on"):
        mmspec.Pipeline.from_pretrained(tmp_path)


def test_the_default_method_fits(pipe: Any) -> None:
    with mmspec.enable(pipe) as spec:
        codes(pipe, ["a cat"], seed=5)
        report = spec.reports["vision_language_encoder"]
    assert spec.components["vision_language_encoder"].method == "gs-sjd" and report.accepted > 0
