"""Janus with a pipeline's face: it draws what its own `generate` draws, and is loaded as transformers saved it."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import mmspec
from mmspec.cli.app import build
from mmspec.hosts import loading
from mmspec.serving import models
from mmspec_image import language_pipeline
from mmspec_image.janus_pipeline import JanusPipeline
from mmspec_image.models.janus import JanusForImages
from tests.support.examples.image import tiny_janus


@pytest.fixture(scope="module")
def folder(janus_processor, tmp_path_factory):
    """As transformers saves a model."""
    folder = tmp_path_factory.mktemp("janus")
    tiny_janus(24, 4).save_pretrained(folder)
    janus_processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pipe(folder):
    pipe = JanusPipeline.from_pretrained(folder, k=5)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_it_draws_what_its_own_generate_draws(pipe, janus_processor):
    prompts = ["a red fox", "a bird"]
    how = dict(generation_mode="image", padding=True, padding_side="left", return_tensors="pt")
    asked = [f"<|User|>: {prompt}\n\n<|Assistant|>:" for prompt in prompts]  # as in training
    given = janus_processor(text=asked, **how)
    theirs = pipe.model.generate(
        input_ids=given["input_ids"],
        attention_mask=given["attention_mask"],
        generation_mode="image",
        do_sample=False,
        guidance_scale=3.0,
    )
    ours = pipe(prompts, guidance_scale=3.0, temperature=0, output_type="pt")
    assert torch.equal(ours.codes.flatten(1), theirs) and ours.report.method == "gs-sjd"
    assert ours.report.row_rounds < 30
    pixels = pipe.model.decode_image_tokens(theirs).permute(0, 3, 1, 2).clamp(-1, 1)
    torch.testing.assert_close(ours.images, pixels / 2 + 0.5)
    assert ours.images.shape[-1] == pipe.side


def test_prompts_have_the_form_of_training_or_of_the_processors_own_template(pipe, monkeypatch):
    """`<|User|>: …\n\n<|Assistant|>:` and the begin of the picture, as transformers' documentation has them."""
    said = pipe.processor.tokenizer.batch_decode(pipe.encode_prompt(" a red fox ", negative_prompt="a bird").input_ids)
    assert said == ["<|User|>: a red fox <|Assistant|>: <boi>"]
    null = pipe.encode_prompt("a red fox", negative_prompt="a bird").negative_ids
    assert pipe.processor.tokenizer.batch_decode(null) == ["<|User|>: a bird <|Assistant|>: <boi>"]
    both = pipe.encode_prompt(["a red fox", "bird"])
    assert both.attention_mask.tolist()[1][:3] == [0, 0, 1] and both.input_ids[:, -1].tolist() == [2, 2]
    own = "{% for m in messages %}Say: {{ m['content'][0]['text'] }}{% endfor %}"
    monkeypatch.setattr(pipe.processor, "chat_template", own)
    ids = pipe.encode_prompt("a red fox").input_ids
    assert pipe.processor.tokenizer.batch_decode(ids) == ["Say: a red fox <boi>"]


def test_its_guidance_is_that_of_its_authors(pipe):
    call = dict(prompt="a red fox", seed=3, output_type="latent")
    assert torch.equal(pipe(**call).images, pipe(**call, guidance_scale=5.0, top_k=0, temperature=1.0).images)
    assert not torch.equal(pipe(**call).images, pipe(**call, guidance_scale=3.0).images)


def test_saved_and_loaded(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    again = mmspec.Pipeline.from_pretrained(tmp_path)
    assert isinstance(again, JanusPipeline)
    again.set_progress_bar_config(disable=True)
    call = dict(prompt="a red fox", seed=3, num_images_per_prompt=2, output_type="latent")
    assert torch.equal(again(**call).images, pipe(**call).images)


@pytest.mark.slow
def test_so_in_a_new_process(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    call = "prompt='a red fox', seed=3, output_type='latent'"
    code = f"import mmspec; print(mmspec.Pipeline.from_pretrained({str(tmp_path)!r})({call}).images.flatten().tolist())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == str(pipe(prompt="a red fox", seed=3, output_type="latent").images.flatten().tolist())


def test_every_door_knows_it_by_its_config_before_weights_are_read(folder, pipe, tmp_path, monkeypatch):
    again = mmspec.Pipeline.from_pretrained(folder, k=5)
    served = models.load(str(folder), "cpu", None, None, {}).pipe
    assert isinstance(again, JanusPipeline) and isinstance(served, JanusPipeline)
    again.set_progress_bar_config(disable=True)
    call = dict(prompt="a red fox", seed=3, output_type="latent")
    assert torch.equal(again(**call).images, pipe(**call).images)
    file = tmp_path / "fox.png"
    arguments = ("a red fox", "--model", str(folder), "-o", str(file), "-k", "5", "--seed", "3", "--dtype", "bfloat16")
    drawn = CliRunner().invoke(build(), ["generate", "image", *arguments])
    assert drawn.exit_code == 0 and file.is_file(), drawn.output
    half = mmspec.Pipeline.from_pretrained(folder, k=5, torch_dtype=torch.bfloat16)
    assert half.model.dtype == torch.bfloat16
    assert np.array_equal(np.asarray(Image.open(file)), np.asarray(half("a red fox", seed=3).images[0]))
    monkeypatch.setattr(language_pipeline, "load_as", lambda kind, *_: asked.append(kind))
    with pytest.raises(ValueError, match="no dtype of weights is called 'bfloat61'; did you mean 'bfloat16'"):
        mmspec.Pipeline.from_pretrained(folder, dtype="bfloat61")
    asked = list[type]()
    with pytest.raises(Exception, match="NoneType"):  # nothing was loaded
        mmspec.Pipeline.from_pretrained(folder)
    assert asked == [JanusForImages]


def test_it_is_no_language_model_of_transformers(folder):
    with pytest.raises(ValueError, match="no causal language model for 'janus': load it with JanusForImages and give"):
        loading.load_model(str(folder))


def test_a_negative_prompt_matters_and_rows_do_not_depend_on_their_batch(pipe):
    both = pipe(["a red fox", "a bird"], negative_prompt="a blue bird", seed=[1, 2], output_type="latent").images
    alone = pipe("a bird", negative_prompt="a blue bird", seed=[2], output_type="latent").images
    assert torch.equal(both[1:], alone)
    assert not torch.equal(pipe("a bird", seed=[2], output_type="latent").images, alone)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"prompt": ["a fox", " "]}, "prompt 1 is empty"),
        ({"class_labels": 1}, "no use for class_labels"),
        ({"prompt": "a fox", "negative_prompt": ["a", "b"]}, "2 negative prompts for 1"),
        ({"prompt": "a fox", "negative_prompt": "a", "guidance_scale": 1.0}, "needs guidance_scale > 1"),
        ({"prompt": "a fox", "height": 7}, "not 7"),
    ],
)
def test_bad_input(pipe, call, said):
    with pytest.raises(ValueError, match=said):
        pipe(**call)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no \*.safetensors file"):
        JanusPipeline.from_pretrained(tmp_path)
