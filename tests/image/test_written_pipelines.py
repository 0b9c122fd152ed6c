"""Pipelines over language models that write pictures: what they draw, sizes, saving, bad input."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import mmspec
from mmspec.api.stored import outline_of
from mmspec.cli.app import build
from mmspec.core.guided import NULL_INPUTS
from mmspec.hosts.loading import load_model
from mmspec.hosts.weight_files import stored_tensors
from mmspec.registry import installed
from mmspec_image.chameleon_pipeline import ChameleonPipeline
from mmspec_image.constraint import chameleon_grid, emu3_grid
from mmspec_image.emu3_pipeline import Emu3Pipeline
from mmspec_image.language_pipeline import Ids
from mmspec_image.specs import EMU3
from tests.support.examples.written import FIRST_CODE, FIRST_SIZE
from tests.support.picture_pipes import chameleon_pipe, emu3_pipe, quiet, vq

PROMPTS = ["a red fox", "blue bird"]


@pytest.fixture(scope="module")
def emu3() -> Emu3Pipeline:
    return emu3_pipe()


@pytest.fixture(scope="module")
def anole() -> ChameleonPipeline:
    return chameleon_pipe(sized=False)


@pytest.fixture(scope="module")
def lumina() -> ChameleonPipeline:
    return chameleon_pipe(sized=True)


PIPES = {"emu3": (8, 10), "anole": (16, 16), "lumina": (8, 12)}
"""Height and width in pixels; a code has two of them per side."""


ONE_FAST = [name if name == "emu3" else pytest.param(name, marks=pytest.mark.slow) for name in PIPES]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("name", PIPES)
def test_it_draws_what_generate_of_its_model_draws(name: str, guidance: float, request: pytest.FixtureRequest) -> None:
    pipe, (height, width) = request.getfixturevalue(name), PIPES[name]
    size = height // 2, width // 2
    call: dict[str, Any] = dict(height=height, width=width, guidance_scale=guidance, temperature=0)
    ours = pipe.use("gs-sjd", k=8)(PROMPTS, **call, output_type="pt")
    pipe._size = size
    given = pipe.encode_prompt(PROMPTS, guided=guidance > 1).inputs
    null = given.pop(NULL_INPUTS, None)
    if null is not None:
        both = {"negative_prompt_ids": null["input_ids"], "negative_prompt_attention_mask": null["attention_mask"]}
        given |= {"guidance_scale": guidance, **both}
    grid = (emu3_grid if name == "emu3" else chameleon_grid)(pipe.model, given["input_ids"], *size)
    how = {"max_new_tokens": grid.length, "do_sample": False}
    ids = pipe.model.generate(**given, **how, prefix_allowed_tokens_fn=grid)[:, given["input_ids"].shape[1] :]
    assert torch.equal(ours.codes.flatten(1), ids[:, grid.grid.picture]) and ours.codes.shape == (2, *size)
    assert not torch.equal(ours.codes[0], ours.codes[1]) and ours.images.shape == (2, 3, height, width)
    if name == "emu3":
        pixels = pipe.model.decode_image_tokens(image_tokens=ids, height=size[0], width=size[1]).flatten(0, -4)
    else:
        codes = ours.codes - FIRST_CODE
        entries = pipe.vq.quantize.embedding.weight[codes].permute(0, 3, 1, 2)
        pixels = pipe.vq.decoder(pipe.vq.post_quant_conv(entries))
    torch.testing.assert_close(ours.images, pixels.detach().clamp(-1, 1) / 2 + 0.5)
    assert ours.report.row_rounds < 2 * (grid.length - 1)


@pytest.mark.parametrize("name", ONE_FAST)
def test_a_picture_depends_on_neither_method_nor_batch(name: str, request: pytest.FixtureRequest) -> None:
    pipe, (height, width) = request.getfixturevalue(name), PIPES[name]
    call: dict[str, Any] = dict(
        height=height, width=width, top_k=8, negative_prompt="a blue bird", output_type="latent"
    )
    plain = pipe.use("plain")(PROMPTS, seed=[1, 2], **call)
    ours = pipe.use("gs-sjd", k=8)(PROMPTS, seed=[1, 2], **call)
    assert torch.equal(plain.images, ours.images) and ours.report.rounds < plain.report.rounds
    assert torch.equal(pipe(PROMPTS[1], seed=[2], **call).images, ours.images[1:])
    assert not torch.equal(pipe(PROMPTS, seed=[1, 2], **{**call, "negative_prompt": "a fox"}).images, ours.images)


def test_methods_of_texts_may_draft_nothing(emu3: Any) -> None:
    call: dict[str, Any] = dict(prompt=PROMPTS, height=8, width=10, temperature=0, output_type="latent")
    assert torch.equal(emu3.use("plain")(**call).images, emu3.use("suffix")(**call).images)


@pytest.mark.parametrize("name", PIPES)
def test_auto_drafts_codes_and_not_texts(name: str, request: pytest.FixtureRequest) -> None:
    pipe, (height, width) = request.getfixturevalue(name), PIPES[name]
    call: dict[str, Any] = dict(prompt=PROMPTS, height=height, width=width, temperature=0, output_type="latent")
    plain, ours = pipe.use("plain")(**call), pipe.use()(**call)
    decoder = pipe.decoder()
    assert (decoder.name, decoder.k, ours.report.method) == ("gs-sjd", 16, "gs-sjd") and "gs-sjd, " in decoder.why
    assert torch.equal(ours.images, plain.images) and ours.report.rounds < plain.report.rounds
    assert pipe.use(rule="rejection").decoder().name == "gs-sjd"
    assert pipe.use(drafter=pipe.model).decoder().name == "draft-model"
    with mmspec.enable(pipe.model) as spec:  # `generate` may write texts; the class for Chameleon's pictures may not
        assert (spec.method == "gs-sjd") == (name != "emu3")


@pytest.mark.parametrize(
    ("name", "authors"),
    [
        ("emu3", {"guidance_scale": 3.0, "top_k": 2048}),
        ("anole", {"guidance_scale": 3.0, "temperature": 0.7, "top_p": 0.9}),
        ("lumina", {"guidance_scale": 4.0, "top_k": 2000}),
    ],
)
def test_a_call_draws_as_the_authors_do_unless_it_says_otherwise(
    name: str, authors: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    pipe, (height, width) = request.getfixturevalue(name), PIPES[name]
    usual = {"guidance_scale": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    assert pipe.sampling._asdict() == {**usual, **authors}
    call: dict[str, Any] = dict(prompt=PROMPTS, height=height, width=width, seed=3, output_type="latent")
    assert torch.equal(pipe(**call).images, pipe(**call, **authors).images)
    assert not torch.equal(pipe(**call).images, pipe(**call, guidance_scale=1.5).images)


@pytest.mark.parametrize("name", ONE_FAST)
def test_a_callback_sees_previews_and_stops(name: str, request: pytest.FixtureRequest) -> None:
    """Steered at fixed numbers of units, so that no draft matters; row ends count."""
    pipe, (height, width) = request.getfixturevalue(name), PIPES[name]
    seen: list[tuple[int, Any]] = []

    def look(pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> None:
        seen.append((timestep, tensors["preview"]))
        pipe.guidance_scale = 2.0 + step
        pipe._interrupt = timestep >= 12

    how = dict(callback_on_step_end=look, callback_on_step_end_tensor_inputs=["preview"], steer_every=6)
    call: dict[str, Any] = dict(height=height, width=width, seed=3, guidance_scale=2.0, output_type="pt", **how)
    made = [pipe.use(method)(PROMPTS, **call) for method in ("plain", "gs-sjd")]
    assert torch.equal(made[0].codes, made[1].codes) and torch.equal(made[0].images, made[1].images)
    assert [timestep for timestep, _ in seen] == 2 * [6, 12]
    assert seen[0][1].shape == (2, 3, height, width) and int((made[0].rounds < 0).sum()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPES)
def test_saved_and_loaded_in_a_new_process(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pipe, (height, width) = request.getfixturevalue(name), PIPES[name]
    call = f"'a red fox', height={height}, width={width}, seed=3, output_type='latent'"
    expected = eval(f"pipe.use('gs-sjd', k=6)({call})").images
    pipe.save_pretrained(tmp_path)
    code = (
        f"import mmspec; p = mmspec.Pipeline.from_pretrained({str(tmp_path)!r}); d = p({call}); print(type(p).__name__)"
    )
    code += "; print(d.report.method, d.images.flatten().tolist())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [type(pipe).__name__, f"gs-sjd {expected.flatten().tolist()}"]


def test_loaded_from_a_folder_of_transformers(emu3: Any, anole: Any, tmp_path: Path) -> None:
    for pipe, name in ((emu3, "emu3"), (anole, "anole")):
        pipe.model.save_pretrained(tmp_path / name)
        pipe.processor.save_pretrained(tmp_path / name)
    call: dict[str, Any] = dict(height=8, width=10, seed=3, output_type="latent")
    for door in (Emu3Pipeline, mmspec.Pipeline):
        again = quiet(door.from_pretrained(tmp_path / "emu3", k=6))
        assert type(again) is Emu3Pipeline
        assert torch.equal(again("a red fox", **call).images, emu3("a red fox", **call).images)
    half = mmspec.Pipeline.from_pretrained(tmp_path / "emu3", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="has no autoencoder, and transformers' Chameleon decodes no codes: give vq="):
        ChameleonPipeline.from_pretrained(tmp_path / "anole")
    vq().save_pretrained(tmp_path / "vq")
    for door in (ChameleonPipeline, mmspec.Pipeline):
        again = quiet(door.from_pretrained(tmp_path / "anole", vq=tmp_path / "vq", sized="false"))
        assert type(again) is ChameleonPipeline and again.config.sized is False
    with pytest.raises(ValueError, match="sized is true or false, not 'no'"):
        mmspec.Pipeline.from_pretrained(tmp_path / "anole", vq=tmp_path / "vq", sized="no")
    assert torch.equal(again("a fox", seed=3, output_type="pt").images, anole("a fox", seed=3, output_type="pt").images)


@pytest.mark.parametrize("name", ONE_FAST)
def test_the_command_takes_sizes_and_parts(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pipe, (height, width), file = request.getfixturevalue(name), PIPES[name], tmp_path / "out.png"
    pipe.model.save_pretrained(tmp_path / "model")
    pipe.processor.save_pretrained(tmp_path / "model")
    vq().save_pretrained(tmp_path / "vq")
    parts = [] if name == "emu3" else ["--opt", f"vq={tmp_path / 'vq'}", "--opt", f"sized={name == 'lumina'}"]
    said = ["generate", "image", "a red fox", "--model", str(tmp_path / "model"), "--seed", "3", "-o", str(file)]
    drawn = CliRunner().invoke(build(), [*said, *parts, "--height", str(height), "--width", str(width)])
    assert drawn.exit_code == 0 and "gs-sjd (invariant)" in drawn.stderr, drawn.output
    ours = pipe.use()("a red fox", height=height, width=width, seed=3)
    assert np.array_equal(np.asarray(Image.open(file)), np.asarray(ours.images[0]))


def test_counters_of_batches_are_not_what_is_wrong_with_a_language_model(emu3: Any, tmp_path: Path) -> None:
    """transformers has a language model of Emu3's config, which finds none of its weights in these files."""
    emu3.model.save_pretrained(tmp_path)
    assert any(tensor.is_integer for tensor in stored_tensors(tmp_path).values())
    with pytest.raises(ValueError, match="do not fit their Emu3ForCausalLM: 21 keys missing"):
        load_model(str(tmp_path))
    seen = outline_of(str(tmp_path))  # as `mmspec methods --for` sees it
    assert type(seen.model) is type(emu3.model) and installed().target_for(seen.model) == EMU3


@pytest.mark.parametrize(
    ("name", "call", "said"),
    [
        ("emu3", {"prompt": ["a fox", " "]}, "prompt 1 is empty"),
        ("emu3", {"prompt": "a fox", "height": 7}, "multiples of 2 pixels, and not 7"),
        ("emu3", {"prompt": "a fox", "width": 0}, "multiples of 2 pixels, and not 0"),
        ("emu3", {"class_labels": 1}, "no use for class_labels"),
        ("emu3", {"prompt": "a fox", "negative_prompt": ["a", "b"]}, "2 negative prompts for 1"),
        ("emu3", {"prompt": "a fox", "negative_prompt": "a", "guidance_scale": 1.0}, "needs guidance_scale > 1"),
        ("anole", {"prompt": "a fox", "height": 8}, "draws 16 × 16 pixels; only Lumina-mGPT reads a size"),
        (
            "lumina",
            {"prompt": "a fox", "height": 20, "width": 20},
            "has no <reserved08805>: it draws no picture of that",
        ),
        ("lumina", {"prompt": "a fox", "height": 6}, "even numbers of codes, and not 3"),
    ],
)
def test_bad_input(name: str, call: dict[str, Any], said: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(ValueError, match=said):
        request.getfixturevalue(name)(**call)


def test_parts_that_do_not_fit(anole: Any) -> None:
    for other, said in ((vq(8), "draws 16 codes, the VQ has 8"), (vq(lookup_from_codebook=False), "lookup_from")):
        with pytest.raises(ValueError, match=said):
            ChameleonPipeline(anole.model, anole.processor, other)


def test_the_sentence_and_the_header_of_lumina(lumina: Any) -> None:
    lumina._size = 4, 6
    ids, mask = lumina.ids_of(PROMPTS)
    asked = "Generate an image of 12x8 according to the following prompt:\na red fox"
    assert ids[0, :-3].tolist() == lumina.processor(text=asked)["input_ids"][0].tolist()
    assert ids[:, -3:].tolist() == 2 * [[21, FIRST_SIZE + 1, FIRST_SIZE + 2]] and mask[1].tolist()[0] == 0
    assert lumina.null_ids(Ids(ids, mask)).ids.tolist() == 2 * [[21, FIRST_SIZE + 1, FIRST_SIZE + 2]]
