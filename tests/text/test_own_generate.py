"""Classes whose `generate` is not transformers' own: what can be sped up is, and the rest is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipConfig,
    BlipForConditionalGeneration,
    JanusForConditionalGeneration,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    LlamaForCausalLM,
)

import mmspec
from mmspec.api.refusals import arguments_of
from tests.support.examples.image import tiny_janus

IDS = torch.tensor([[1, 7, 8, 9, 10, 2], [0, 0, 1, 5, 6, 2]])
MASK = (IDS != 0).long()
CALL = {"max_new_tokens": 8}


@pytest.fixture(scope="module")
def janus() -> Any:
    """As transformers loads it: a model that writes texts, or draws in a mode of its `generate`."""
    drawing = tiny_janus(24, 4)
    model = JanusForConditionalGeneration(drawing.config).eval()
    model.load_state_dict(drawing.state_dict())
    model.generation_config = drawing.generation_config
    return model


CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "by position": lambda model, how: model.generate(IDS, MASK, **how),
    "the first by position": lambda model, how: model.generate(IDS, attention_mask=MASK, **how),
    "by name": lambda model, how: model.generate(inputs=IDS, attention_mask=MASK, **how),
    "mode": lambda model, how: model.generate(input_ids=IDS, attention_mask=MASK, generation_mode="text", **how),
}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_texts_of_janus_are_those_of_its_own_generate(janus: Any, call: str, sampled: bool) -> None:
    """Its mask is the second argument by position; of transformers' own `generate` that is a configuration."""
    how = {**CALL, "do_sample": sampled}
    torch.manual_seed(3)
    text = CALLS[call](janus, how)
    with mmspec.enable(janus, "prompt-lookup") as spec:
        torch.manual_seed(3)
        assert torch.equal(CALLS[call](janus, how), text)
    assert spec.report is not None and spec.report.emitted == 16


def test_pictures_of_janus_are_refused_with_their_pipeline_and_drawn_after_disable(janus: Any) -> None:
    drawn: dict[str, Any] = dict(input_ids=IDS, attention_mask=MASK, generation_mode="image", do_sample=False)
    codes = janus.generate(**drawn)
    with (
        mmspec.enable(janus),
        pytest.raises(ValueError, match=r"generation_mode='image' .* a JanusPipeline of this model drafts there"),
    ):
        janus.generate(**drawn)
    assert torch.equal(janus.generate(**drawn), codes)


class OwnLoop(LlamaForCausalLM):
    def generate(self, ids: Any, **how: Any) -> Any:
        return self(ids).logits.argmax(-1)


class OwnArguments(LlamaForCausalLM):
    def generate(self, ids: Any, steps: int = 3) -> Any:
        return super().generate(ids, max_new_tokens=steps)


class Swapped(LlamaForCausalLM):
    def generate(self, attention_mask: Any, inputs: Any, *, more: int = 0, **how: Any) -> Any:
        return super().generate(inputs, attention_mask=attention_mask, **how)


class HandsOn(LlamaForCausalLM):
    def generate(self, *args: Any, **how: Any) -> Any:
        return super().generate(*args, **how)


@pytest.mark.parametrize("kind", [OwnLoop, OwnArguments])
def test_a_loop_of_its_own_is_refused_before_anything_is_replaced(target: Any, kind: Any) -> None:
    with pytest.raises(ValueError, match=f"generate of a {kind.__name__} is a loop of its own"):
        mmspec.enable(kind(target.config).eval())


def test_models_of_pipelines_are_refused_with_the_pipelines_name(by_name: dict[str, Any]) -> None:
    for pipeline, model in by_name.items():
        with pytest.raises(ValueError, match=f"is run by a {pipeline}, which speculates as it is"):
            mmspec.enable(model)
        assert "generate" not in vars(model)


@pytest.fixture
def by_name() -> dict[str, Any]:
    from transformers import XLNetConfig, XLNetLMHeadModel

    from mmspec_image.models.llamagen import LlamaGenTransformer

    writer = XLNetLMHeadModel(XLNetConfig(vocab_size=20, d_model=16, n_layer=1, n_head=2, d_inner=16)).eval()
    drawer = LlamaGenTransformer(6, 4, dim=16, n_layer=1, n_head=2, multiple_of=16, num_classes=2).eval()
    return {"JanusPipeline": tiny_janus(24, 4), "TextToImagePipeline": drawer, "InfillPipeline": writer}


@pytest.mark.parametrize("kind", [Swapped, HandsOn])
def test_an_order_of_its_own_is_kept(target: Any, prompts: Callable, kind: Any) -> None:
    model = kind(target.config).eval()
    model.load_state_dict(target.state_dict())
    given = prompts(2)
    ids, mask = given["input_ids"], given["attention_mask"]

    def run() -> Any:
        if kind is Swapped:
            return model.generate(mask, ids, do_sample=False, **CALL)
        return model.generate(ids, attention_mask=mask, do_sample=False, **CALL)

    text = run()
    with mmspec.enable(model, "prompt-lookup"):
        assert torch.equal(run(), text)


def test_arguments_are_called_as_the_class_calls_them(target: Any, janus: Any) -> None:
    swapped, handing = Swapped(target.config), HandsOn(target.config)
    assert arguments_of(swapped, (1, 2), {"k": 3}) == {"attention_mask": 1, "inputs": 2, "k": 3}
    assert arguments_of(handing, (1, 2), {}) == {"inputs": 1, "generation_config": 2}
    assert arguments_of(janus, (1, 2, 3), {}) == {"inputs": 1, "attention_mask": 2, "logits_processor": 3}
    for args, how, said in (
        ((1, 2, 3), {}, "attention_mask, inputs by position"),
        ((1,), {"attention_mask": 2}, "twice"),
    ):
        with pytest.raises(TypeError, match=said):
            arguments_of(swapped, args, how)


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
EYES = {**SIZES, "image_size": 16, "patch_size": 8}
SEEN, PIXELS = 88, torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def blip2() -> Any:
    text = {"model_type": "opt", "vocab_size": 90, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "pad_token_id": 0, "word_embed_proj_dim": 32, "eos_token_id": None}
    asks = {**SIZES, "vocab_size": 60, "encoder_hidden_size": 32}
    how = {"vision_config": EYES, "qformer_config": asks, "text_config": text, "num_query_tokens": 4}
    torch.manual_seed(0)
    model = Blip2ForConditionalGeneration(Blip2Config(**how, image_token_index=SEEN)).eval()
    for weights in model.language_model.parameters():
        weights.data.normal_(0, 0.3)
    return model


def blip() -> Any:
    text = {**SIZES, "vocab_size": 131, "encoder_hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2}
    config = BlipConfig(text_config=text, vision_config=EYES, projection_dim=32)
    return BlipForConditionalGeneration(config).eval()


def kosmos2() -> Any:
    text = {"vocab_size": 90, "embed_dim": 32, "ffn_dim": 48, "layers": 2, "attention_heads": 4, "pad_token_id": 1}
    model = Kosmos2ForConditionalGeneration(Kosmos2Config(text_config=text, vision_config=EYES, latent_query_num=4))
    for weights in model.text_model.parameters():
        weights.data.normal_(0, 0.3)
    return model.eval()


@pytest.mark.parametrize("sampled", [False, True])
def test_a_call_that_is_handed_on_is_sped_up_in_the_part_that_is_named(sampled: bool) -> None:
    model = blip2()
    with pytest.raises(ValueError, match=r"to its part language_model, a OPTForCausalLM: enable that part, .*enable"):
        mmspec.enable(model)
    ids = torch.tensor([[SEEN] * 4 + [2, 5, 6, 7, 5, 6], [0] + [SEEN] * 4 + [2, 5, 6, 5, 6]])
    call = {"pixel_values": PIXELS, "input_ids": ids, "attention_mask": (ids != 0).long(), "max_new_tokens": 16}
    torch.manual_seed(3)
    text = model.generate(**call, do_sample=sampled)
    with mmspec.enable(model.language_model, "draft-model", drafter=model.language_model) as spec:
        torch.manual_seed(3)
        assert torch.equal(model.generate(**call, do_sample=sampled), text)
    assert spec.report is not None and spec.report.drafted > 0


def test_parts_that_cannot_be_sped_up_say_why() -> None:
    with pytest.raises(ValueError, match="to its part text_decoder, a BlipTextLMHeadModel, which reads an encoder's"):
        mmspec.enable(blip())
    captioner, seeing = blip(), kosmos2()
    with (
        mmspec.enable(captioner.text_decoder, "prompt-lookup"),
        pytest.raises(ValueError, match="BlipTextLMHeadModel reads an encoder's states in this call"),
    ):
        captioner.generate(pixel_values=PIXELS, max_new_tokens=4)
    with pytest.raises(ValueError, match="to its part text_model, a Kosmos2TextForCausalLM: enable that part"):
        mmspec.enable(seeing)
    with pytest.raises(ValueError, match="gives the model no positions, which the model counts in a way of its own"):
        mmspec.enable(seeing.text_model)
