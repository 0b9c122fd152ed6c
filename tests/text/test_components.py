"""Pipelines of diffusers that call a language model: `enable(pipe)` gives the texts of the stock pipeline."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    ErnieImagePipeline,
    Flux2Pipeline,
    Ideogram4Pipeline,
    QwenImageLayeredPipeline,
    UNet2DModel,
)

import mmspec
from tests.support.pipelines import Words, bare, seeded
from tests.support.zoo import build
from tests.support.zoo.vision import VISION


def flux() -> Flux2Pipeline:
    return bare(Flux2Pipeline, text_encoder=build("ministral3"), tokenizer=Words())


def ernie() -> ErnieImagePipeline:
    words = {"tokenizer": Words(), "pe_tokenizer": Words()}
    return bare(ErnieImagePipeline, text_encoder=build("ministral3").model, pe=build("ministral3", 1), **words)


def layered() -> QwenImageLayeredPipeline:
    model = VISION["qwen2_5_vl"].model()
    return bare(QwenImageLayeredPipeline, text_encoder=model, tokenizer=Words(), processor=Words())


def ideogram() -> Ideogram4Pipeline:
    """Its `_prompt_enhancer` is made of body and head at the first call; another model generates beside it."""
    whole = VISION["qwen3_vl"].model()
    head = torch.nn.Module()
    head.lm_head = whole.lm_head
    pipe = bare(Ideogram4Pipeline, text_encoder=whole.model, tokenizer=Words())
    pipe.prompt_enhancer_head = head
    return pipe


def noise_alone(noisy: bool = False) -> DDPMPipeline | DDIMPipeline:
    sizes = {"block_out_channels": (8,), "down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = UNet2DModel(sample_size=8, norm_num_groups=4, **sizes)
    return DDPMPipeline(unet, DDPMScheduler()) if noisy else DDIMPipeline(unet, DDIMScheduler())


def upsampled(pipe: Any) -> Any:
    return pipe.upsample_prompt(["a cat", "a dog"])


def captioned(pipe: Any) -> Any:
    return pipe.get_image_caption("a picture")


def grafted(pipe: Any) -> Any:
    return pipe.upsample_prompt("a cat", max_new_tokens=60, generator=torch.Generator().manual_seed(3))


def enhanced(pipe: Any) -> Any:
    return pipe._enhance_prompt_with_pe("a cat", torch.device("cpu"))


@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
@pytest.mark.parametrize(
    ("made", "name", "call"),
    [
        (ernie, "pe", enhanced),
        pytest.param(flux, "text_encoder", upsampled, marks=pytest.mark.slow),
        pytest.param(layered, "text_encoder", captioned, marks=pytest.mark.slow),
    ],
)
def test_texts_and_generator_equal_those_of_the_stock_pipeline(
    made: Callable[[], Any], name: str, call: Callable[[Any], Any], method: str
) -> None:
    pipe = made()
    kind, (text, state) = type(pipe), seeded(lambda: call(pipe))
    with mmspec.enable(pipe, method) as spec:
        again, left = seeded(lambda: call(pipe))
        assert list(spec.components) == [name]
        assert spec.reports[name].rounds > 0
        assert isinstance(pipe, kind)
        assert type(pipe).__name__ == kind.__name__
    assert again == text
    assert torch.equal(left, state)
    assert type(pipe) is kind
    assert "generate" not in vars(getattr(pipe, name))
    assert mmspec.api.adapters.HANDLE not in vars(pipe)


def test_models_that_do_not_generate_are_listed_with_the_reason() -> None:
    with mmspec.enable(ernie()) as spec:
        assert "does not generate" in spec.skipped["text_encoder"]


def test_arguments_of_one_component_take_precedence() -> None:
    with mmspec.enable(ernie(), "prompt-lookup", k=3, components={"pe": {"k": 5}}) as spec:
        assert "k=5" in repr(spec.components["pe"])
        assert spec.components["pe"].method == "prompt-lookup"


def test_a_component_that_is_built_later_is_enabled_when_it_is_stored() -> None:
    pipe = ernie()
    later = build("ministral3", 2)
    with mmspec.enable(pipe, "prompt-lookup") as spec:
        pipe._prompt_enhancer = later
        assert spec.components.keys() == {"pe", "_prompt_enhancer"}
        assert "generate" in vars(later)
        first, pipe.pe = pipe.pe, later
        assert "generate" not in vars(first)
        assert spec.components["pe"] is spec.components["_prompt_enhancer"]
    assert "generate" not in vars(later)


def test_a_pipeline_that_builds_its_language_model_at_the_first_call() -> None:
    text = grafted(ideogram())
    pipe = ideogram()
    with mmspec.enable(pipe, "prompt-lookup") as spec:
        assert spec.components == {}
        assert grafted(pipe) == text
        assert spec.reports["_prompt_enhancer"].rounds > 0
    assert "generate" not in vars(pipe._prompt_enhancer)
    assert grafted(pipe) == text


def test_enabling_again_and_disabling_by_the_pipeline() -> None:
    pipe = ernie()
    first = mmspec.enable(pipe, "prompt-lookup")
    with pytest.raises(ValueError, match="a part of an enabled ErnieImagePipeline"):
        mmspec.enable(pipe.pe, "plain")
    second = mmspec.enable(pipe, "plain")
    first.disable()
    assert vars(pipe.pe)["generate"] == second.components["pe"].generate
    mmspec.disable(pipe)
    assert "generate" not in vars(pipe.pe)


@pytest.mark.parametrize(
    ("made", "arguments", "says"),
    [
        (ernie, {"components": {"pee": {}}}, "did you mean 'pe'"),
        (ernie, {"components": {"text_encoder": {}}}, "'text_encoder' cannot be enabled: .* does not generate"),
        (ernie, {"method": "prompt-lokup"}, "(?s)no component of this ErnieImagePipeline .* pe: .*prompt-lookup"),
        (noise_alone, {"components": {"unet": {}}}, "'unet' cannot be enabled: a UNet2DModel does not generate"),
        (noise_alone, {"method": "prompt-lookup"}, "keeps its own loop"),
    ],
)
def test_what_cannot_be_enabled_is_refused(made: Callable[[], Any], arguments: dict[str, Any], says: str) -> None:
    pipe = made()
    before = type(pipe)
    with pytest.raises(ValueError, match=says):
        mmspec.enable(pipe, **arguments)
    assert type(pipe) is before
    assert not any("generate" in vars(part) for part in vars(pipe).values() if isinstance(part, torch.nn.Module))


def test_a_pipeline_without_a_language_model_is_refused_with_its_models() -> None:
    pipe = ernie()
    pipe.pe = None
    with pytest.raises(ValueError, match=r"(?s)no component .* text_encoder: a \w+ does not generate"):
        mmspec.enable(pipe)


def test_auto_prefers_an_adapter_that_takes_the_pipeline_and_says_why_another_does_not() -> None:
    silent, denoising = noise_alone(), noise_alone(noisy=True)
    silent.text_encoder = denoising.text_encoder = build("ministral3")
    with mmspec.enable(silent) as parts:
        assert list(parts.components) == ["text_encoder"]
        assert "adds none as it is called by default (eta=0.0)" in parts.skipped["speculative-denoising"]
    with mmspec.enable(denoising) as whole:
        assert whole.method == "speculative-denoising"
        with pytest.raises(ValueError, match="enabled already"):
            mmspec.enable(denoising, "prompt-lookup")
    with mmspec.enable(denoising, "prompt-lookup") as parts:
        assert list(parts.components) == ["text_encoder"]
    with mmspec.enable(denoising, drafter="prompt-lookup") as parts:
        assert list(parts.components) == ["text_encoder"]
        assert "takes k= and no drafter=" in parts.skipped["speculative-denoising"]
