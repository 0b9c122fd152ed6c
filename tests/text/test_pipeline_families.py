"""Every family of diffusers that calls `generate` itself: texts and the generator's state are the stock pipeline's."""

from collections.abc import Callable, Mapping
from typing import Any

import diffusers
import pytest
import torch
from diffusers.modular_pipelines.ernie_image.encoders import ErnieImagePromptEnhancerStep
from diffusers.modular_pipelines.flux3.prompt_upsampler import Flux3AutoPromptUpsampleStep
from diffusers.modular_pipelines.ideogram4.encoders import Ideogram4PromptUpsampleStep
from diffusers.modular_pipelines.ltx2.encoders import LTX2PromptEnhancerStep
from diffusers.modular_pipelines.minimax_music3.encoders import MiniMaxMusic3AutoregressiveStep
from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
from diffusers.modular_pipelines.qwenimage.encoders import QwenImageLayeredGetImagePromptStep
from PIL import Image
from torch import Tensor
from transformers import BlipConfig, BlipForConditionalGeneration, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

import mmspec
from tests.support.pipelines import Words, bare, seeded
from tests.support.zoo import RECURRENT, build
from tests.support.zoo.recipe import Recipe
from tests.support.zoo.vision import IMAGE, PATCH, QWEN, VISION, VisionRecipe, patches, whole

LTX2 = ["LTX2Pipeline", "LTX2ImageToVideoPipeline", "LTX2ConditionPipeline", "LTX2DFRPipeline", "LTX2InContextPipeline"]
PICTURE = Image.new("RGB", (32, 32))
NEW = 60


def drawer() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def ltx2(kind: str, **parts: Any) -> Any:
    model, words = VISION["gemma3"].model(), Words(VISION["gemma3"])
    return bare(getattr(diffusers, kind), text_encoder=model, tokenizer=words, processor=words, **parts)


def qwen(kind: Any, **parts: Any) -> Any:
    return bare(kind, text_encoder=VISION["qwen2_5_vl"].model(), tokenizer=Words(), **parts)


def longcat() -> Any:
    pipe = qwen(diffusers.LongCatImagePipeline, text_processor=Words())
    pipe.tokenizer_max_length = NEW
    return pipe


def gemma4() -> PreTrainedModel:
    tower = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tower |= {"num_key_value_heads": 2, "head_dim": 16}
    parts = {"text_config": build("gemma4_text").config.to_dict(), "vision_config": tower, "audio_config": None}
    return VisionRecipe(Recipe("gemma4", "mixed", {**parts, "image_token_id": IMAGE}), whole(4)).model()


def qwen3_5() -> PreTrainedModel:
    tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": PATCH}
    tower |= {"spatial_merge_size": 2, "out_hidden_size": 64, "num_position_embeddings": 16}
    text = RECURRENT["qwen3_5_text"].configuration().to_dict()
    return VisionRecipe(
        Recipe("qwen3_5", "three-axes", {**QWEN, "text_config": text, "vision_config": tower}), patches(2)
    ).model()


def rewritten(picture: Any) -> Callable[[Any], Any]:
    """LTX 2; its pipelines from pictures ask for one, which may be None."""
    return lambda pipe: pipe.enhance_prompt(
        "a cat", "be brief", **({} if picture == "none" else {"image": picture}), max_new_tokens=NEW, generator=drawer()
    )


def expanded(picture: Any) -> Callable[[Any], Any]:
    """Kandinsky 6; the function is static, and gets the pipeline's parts."""
    how = {"image": picture, "max_sequence_length": NEW, "generator": drawer()}
    return lambda pipe: pipe.expand_prompts(["a cat"], pipe.tokenizer, pipe.text_encoder, torch.device("cpu"), **how)


def rewired(pipe: Any) -> Any:
    return pipe.rewire_prompt(["a cat", "a dog"], torch.device("cpu"))


def compare(pipe: Any, call: Callable[[Any], Any], method: str, name: str) -> None:
    text, state = seeded(lambda: call(pipe))
    with mmspec.enable(pipe, method) as spec:
        again, left = seeded(lambda: call(pipe))
        report = spec.reports[name]
    assert again == text
    assert torch.equal(left, state)
    assert report is not None and report.drafted > 0
    assert "generate" not in vars(getattr(pipe, name))


FAMILIES = [
    *[(lambda kind=kind: ltx2(kind), rewritten(None if "ToVideo" in kind else "none")) for kind in LTX2],
    (lambda: ltx2("LTX2ImageToVideoPipeline"), rewritten(PICTURE)),
    (longcat, rewired),
    (lambda: qwen(diffusers.Kandinsky6TI2VAPipeline), expanded(None)),
    (lambda: qwen(diffusers.Kandinsky6TI2VAPipeline), expanded(PICTURE)),
]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
@pytest.mark.parametrize(("made", "call"), FAMILIES)
def test_pipelines(made: Callable[[], Any], call: Callable[[Any], Any], method: str) -> None:
    compare(made(), call, method, "text_encoder")


@pytest.mark.slow
def test_ltx_with_an_enhancer_of_its_own() -> None:
    """It decodes greedily, without n-grams that were there before: a processor that reads the history."""
    compare(ltx2("LTX2Pipeline", prompt_enhancer=gemma4()), rewritten("none"), "token-recycling", "prompt_enhancer")


MODULAR: dict[str, tuple[Any, str, Callable[[], Any], Mapping[str, Any]]] = {
    "ernie": (ErnieImagePromptEnhancerStep, "pe", lambda: build("ministral3", 1), {"prompt": "a cat"}),
    "ltx2": (
        LTX2PromptEnhancerStep,
        "prompt_enhancer",
        gemma4,
        {"prompt": "a cat", "enable_prompt_enhancement": True, "prompt_max_new_tokens": NEW},
    ),
    "layered": (
        QwenImageLayeredGetImagePromptStep,
        "text_encoder",
        VISION["qwen2_5_vl"].model,
        {"resized_image": PICTURE},
    ),
    "flux3": (Flux3AutoPromptUpsampleStep, "prompt_upsampler", qwen3_5, {"prompt": "a cat", "max_new_tokens": NEW}),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", MODULAR)
def test_modular_pipelines(family: str) -> None:
    steps, name, made, arguments = MODULAR[family]
    pipe = steps().init_pipeline()
    words = [part for part in pipe.component_names if part != name]
    pipe.update_components(**{name: made()}, **{part: Words() for part in words})
    compare(pipe, lambda pipe: pipe(**arguments, output="prompt"), "token-recycling", name)


@pytest.mark.slow
def test_a_step_that_builds_its_language_model_at_the_first_call() -> None:
    """Ideogram 4: the step within the pipeline's steps holds what it built of the pipeline's parts."""
    whole = VISION["qwen3_vl"].model()
    head = torch.nn.Module()
    head.lm_head = whole.lm_head
    steps = {"upsample": Ideogram4PromptUpsampleStep()}

    def made() -> Any:
        pipe = SequentialPipelineBlocks.from_blocks_dict(steps).init_pipeline()
        pipe.update_components(text_encoder=whole.model, tokenizer=Words(), prompt_enhancer_head=head)
        return pipe

    def call(pipe: Any) -> tuple[Any, Tensor]:
        how = {"prompt_upsampling": True, "max_sequence_length": NEW, "generator": drawer(), "output": "prompt"}
        return seeded(lambda: pipe(prompt="a cat", height=64, width=64, **how))

    stock, pipe = call(made()), made()
    for _ in range(2):  # built in the call, and before it
        with mmspec.enable(pipe, "token-recycling", components={"_prompt_enhancer": {"k": 3}}) as spec:
            found = call(pipe)
            assert "k=3" in repr(spec.components["_prompt_enhancer"])
            assert spec.reports["_prompt_enhancer"].drafted > 0
        assert found[0] == stock[0] and torch.equal(found[1], stock[1])
        step = pipe._blocks.sub_blocks["upsample"]
        assert type(step) is Ideogram4PromptUpsampleStep and "generate" not in vars(step._prompt_enhancer)


@pytest.mark.slow
def test_a_component_that_a_modular_pipeline_gets_later() -> None:
    pipe = ErnieImagePromptEnhancerStep().init_pipeline()
    pipe.update_components(pe=build("ministral3", 1), pe_tokenizer=Words())
    stock = seeded(lambda: pipe(prompt="a cat", output="prompt"))
    other = build("ministral3", 1)
    with mmspec.enable(pipe, "prompt-lookup") as spec:
        pipe.update_components(pe=other)
        found = seeded(lambda: pipe(prompt="a cat", output="prompt"))
        assert spec.reports["pe"].rounds > 0
    assert found[0] == stock[0] and torch.equal(found[1], stock[1])
    assert "generate" not in vars(other)


def music() -> Any:
    """The codes of MiniMax Music 3: its language model has the ids of the codes, high above those of words."""
    sizes = {"vocab_size": 151675 + 16384, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    depth = {"hidden_size": 16, "num_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, eos_token_id=None)).eval()
        decoder = diffusers.MiniMaxMusic3RVQDepthDecoder(**depth, audio_vocab_size=8).eval()
    pipe = MiniMaxMusic3AutoregressiveStep().init_pipeline()
    pipe.update_components(language_model=model, rvq_depth_decoder=decoder)
    return pipe


def sound() -> Any:
    return bare(diffusers.AudioLDM2Pipeline, language_model=build("gpt2"))


@pytest.mark.parametrize("made", [pytest.param(music, marks=pytest.mark.slow), sound])
def test_a_loop_of_the_pipelines_own_is_refused_with_the_reason(made: Callable[[], Any]) -> None:
    pipe = made()
    with pytest.raises(ValueError, match=f"language_model: a {type(pipe).__name__} runs it in a loop of its own"):
        mmspec.enable(pipe, "prompt-lookup")
    with mmspec.enable(pipe.language_model, "prompt-lookup"):  # by itself it can be enabled
        assert "generate" in vars(pipe.language_model)


@pytest.mark.slow
def test_the_loop_of_music_draws_what_it_draws_without_mmspec() -> None:
    """It calls the language model's body, which nothing replaces."""
    pipe, ids = music(), torch.arange(6)[None].repeat(2, 1)

    def frames() -> tuple[Any, Tensor]:
        draws = {"text_ids": ids, "audio_duration": 0.2, "generator": drawer()}
        return seeded(lambda: pipe(**draws, output="frame_hiddens"))

    stock = frames()
    with mmspec.enable(pipe.language_model, "prompt-lookup") as spec:
        found = frames()
        assert spec.report is None, "generate is never called"
    assert torch.equal(found[0], stock[0]) and torch.equal(found[1], stock[1])


@pytest.mark.slow
def test_a_captioner_whose_text_is_a_part_of_its_own_is_refused_with_the_reason() -> None:
    """BLIP hands its call on to a part for text, whose passes need the picture's states."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 131, "encoder_hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2}
    eyes = {**sizes, "image_size": 32, "patch_size": 8}
    captioner = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=eyes, projection_dim=32))
    pipe = bare(diffusers.StableDiffusionPix2PixZeroPipeline, caption_generator=captioner.eval())
    with pytest.raises(
        ValueError,
        match=r"caption_generator: generate of a BlipForConditionalGeneration .* text_decoder, .* an encoder's states",
    ):
        mmspec.enable(pipe, "prompt-lookup")
    assert "generate" not in vars(captioner)
