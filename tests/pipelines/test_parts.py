"""A pipeline draws with the parts that it holds: parts that are replaced, batches, places, numbers that are none."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, DiffusionPipeline
from transformers import AutoModelForCausalLM

import mmspec
from mmspec.shipped import asset
from mmspec_image.pipeline import TextToImagePipeline
from tests.pipelines.conftest import CALLS, shot


def changed(model: Any) -> Any:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weights in other.parameters():
            weights.copy_(weights.flip(0) * 1.2)
    return other


def test_a_part_that_is_replaced_is_drawn_with(name: str, pipe: Any) -> None:
    draw, part = CALLS[name], pipe.target_module
    own, before = getattr(pipe, part), draw(pipe)
    other = changed(own)
    setattr(pipe, part, other)
    made = draw(pipe)
    assert before.shape != made.shape or not torch.allclose(before.float(), made.float(), atol=1e-2), "as before"
    assert pipe.decoder().target.model is other
    again = copy.deepcopy(pipe)
    again._decoder = None
    torch.testing.assert_close(draw(again), made)
    pipe.register_modules(**{part: own})
    torch.testing.assert_close(draw(pipe), before)


def test_the_method_and_its_options_stay() -> None:
    pipe = mmspec.Pipeline.from_pretrained("mmspec/text-1m", method="prompt-lookup", k=3, max_ngram=4)
    pipe.model = changed(pipe.model)
    decoder = pipe.decoder()
    assert (decoder.name, decoder.k, decoder.drafter.options.max_ngram) == ("prompt-lookup", 3, 4)
    assert pipe.decoder() is decoder


def test_a_codebook_that_is_replaced_is_the_rules_too(tiny: Any) -> None:
    pipe = TextToImagePipeline(**tiny.components).use("gsd")
    before = pipe.decoder().target.codebook
    pipe.vq = changed(pipe.vq)
    assert torch.equal(pipe.decoder().target.codebook, pipe.vq.quantize.entries)
    assert not torch.equal(before, pipe.decoder().target.codebook)
    TextToImagePipeline(**tiny.components)  # the transformer is the fixture's, which knows its own codebook


def test_a_part_that_does_not_fit_is_refused(tiny: Any, pipes: Any) -> None:
    pipe = TextToImagePipeline(**tiny.components).use("gs-sjd")
    wrong = copy.deepcopy(pipe.vq)
    wrong.register_to_config(codebook_size=30)
    pipe.vq = wrong
    with pytest.raises(ValueError, match="the transformer draws 24, the VQ has 30"):
        CALLS["tiny"](pipe)
    world = copy.deepcopy(pipes["codes"])
    world.transformer = pipes["denoised"].transformer
    with pytest.raises(ValueError, match="want an AutoencoderKL or an OasisVAE, and not LlamaGenVQ"):
        CALLS["codes"](world)


def test_frames_of_codes_are_those_of_the_row_alone_to_the_byte(pipes: Any) -> None:
    pipe, frames, call = pipes["codes"], shot(3), {"output_type": "pt"}
    made = pipe(frames, [0, 1, 2], seed=[1, 2, 3], **call).frames
    for row in range(3):
        assert torch.equal(made[row], pipe(frames[row : row + 1], [0, 1, 2], seed=[row + 1], **call).frames[0])


def test_meta_is_no_place_to_draw(text: Any) -> None:
    for place in ("meta", "nowhere"):
        with pytest.raises(ValueError, match=f"there is no device '{place}'; there is cpu"):
            text.to(device=place)
    with pytest.raises(ValueError, match="there is no device 'meta'"):
        text.to("meta", torch.float32)
    assert len(text("def main(", 2, seed=0).ids[0]) == 2, "weights are where they were"


WRITING = {"variant= writes weights": {"variant": "fp16"}, "=False writes pickles": {"safe_serialization": False}}


@pytest.mark.parametrize("said", WRITING)
def test_what_no_pipeline_reads_is_not_written(text: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        text.save_pretrained(tmp_path / "saved", **WRITING[said])
    assert not (tmp_path / "saved").exists()


INF, NAN = float("inf"), float("nan")
CODES: dict[str, tuple[Any, ...]] = {
    "num_images_per_prompt": (None, 0, -1, 1.5, "3"),
    "guidance_scale": (INF, NAN, 0.5, "3"),
    "temperature": (NAN, -1.0, "1"),
}
FRAMES: dict[str, tuple[Any, ...]] = {"fps": (0, -1, 101, "20", 1.5), "num_frames": (0, "3")}
NONE: dict[str, dict[str, tuple[Any, ...]]] = {
    "text": {
        "max_new_tokens": (None, 0, 1.5, "3"),
        "num_return_sequences": (None, 0, "3"),
        "temperature": (None, NAN, -1.0, "1"),
        "top_k": (None, -1, 1.5),
        "top_p": (None, NAN, 2.0),
        "min_p": (None, NAN, 2.0),
        "repetition_penalty": (None, NAN, 0.0, "1"),
    },
    **dict.fromkeys(("tiny", "janus", "emu3", "lumina"), CODES),
    "continuous": {"num_images_per_prompt": (None, 0), "guidance_scale": (INF, NAN, "3")},
    "codes": {**FRAMES, "temperature": (NAN, -1.0), "top_k": (-1, 1.5)},
    "denoised": {**FRAMES, "num_inference_steps": (0, "3")},
    "published": {**FRAMES, "num_inference_steps": (0, "3")},
}
INNER = ("supported between", "NoneType", "object is not", "NaN or all -inf", "Value after")
"""Words of errors that come from within."""


def test_a_number_that_is_none_is_named_before_a_pass(name: str, pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getattr(pipe, pipe.target_module), "forward", None)
    prompt = (shot(), [0, 1]) if name in ("codes", "denoised", "published") else ("red heart",)
    for argument, values in NONE[name].items():
        for value in values:
            with pytest.raises(ValueError) as refused:
                pipe(*prompt, **{argument: value})
            said = str(refused.value)
            assert argument in said and not any(word in said for word in INNER), (argument, value, said)


def test_a_component_that_is_no_model_cannot_be_enabled() -> None:
    class Stock(DiffusionPipeline):
        def __init__(self, text_encoder: Any, scheduler: Any) -> None:
            super().__init__()
            self.register_modules(text_encoder=text_encoder, scheduler=scheduler)

    pipe = Stock(AutoModelForCausalLM.from_pretrained(asset("text-1m")), DDPMScheduler())
    with pytest.raises(ValueError, match="the component 'scheduler' cannot be enabled: a DDPMScheduler is no model"):
        mmspec.enable(pipe, components={"scheduler": {"k": 3}})
    assert "generate" not in vars(pipe.text_encoder)
    with mmspec.enable(pipe, components={"text_encoder": {"k": 3}}) as spec:
        assert list(spec.components) == ["text_encoder"]
        with pytest.raises(TypeError, match="a Stock that is enabled is not copied"):
            copy.deepcopy(pipe)
    copied = copy.deepcopy(pipe)
    assert copied.text_encoder is not pipe.text_encoder and type(copied) is Stock
