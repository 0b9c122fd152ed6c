"""MAR: its authors' files are converted; tokens and pixels are those of their class (`tools/fixtures/official.py`)."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open

import mmspec
from mmspec.cli.app import build
from mmspec.kits.pictures.layouts import layouts
from mmspec_continuous.mar_pipeline import MARPipeline
from mmspec_continuous.models.mar import denoising
from tests.support import official_files as files
from tests.support.close import assert_near

FIXTURE = Path(__file__).parents[1] / "image" / "official" / "mar.safetensors"
KNOWN = {"num_heads": 4}
STEPS = 10


@pytest.fixture(scope="module")
def theirs():
    with safe_open(FIXTURE, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    with safe_open(FIXTURE, "pt") as file:
        return files.write_mar(tmp_path_factory.mktemp("mar"), json.loads(file.metadata()["shapes"]))


@pytest.fixture(scope="module")
def folder(published, tmp_path_factory):
    made = tmp_path_factory.mktemp("made") / "mar"
    layouts()["mar"].convert([published / "kl16.ckpt", published / "checkpoint-last.pth"], made, KNOWN)
    return made


@pytest.fixture(scope="module")
def pipe(folder):
    loaded = mmspec.Pipeline.from_pretrained(folder, trust_remote_code=False)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def published_noise(rows, guided):
    """Numbers as their class draws them from torch's generator: for both halves in a step, and used in one."""
    calls = 0

    def normal(count):
        nonlocal calls
        begins, calls = calls % (STEPS + 1) == 0, calls + 1
        return torch.randn(rows * count * (1 if begins or not guided else 2), 16)[: rows * count].unflatten(
            0, (rows, -1)
        )

    return normal


@pytest.mark.parametrize(
    ("name", "how"), [("guided", {"sets": 5, "guidance": 2.9}), ("plain", {"sets": 16, "temperature": 0.95})]
)
def test_tokens_are_those_of_its_authors(pipe, theirs, name, how):
    torch.manual_seed(5)
    noise = published_noise(2, name == "guided")
    drawn = pipe.transformer.draw(theirs["labels"], theirs["orders"], noise, denoising_steps=STEPS, **how)
    latents = drawn.transpose(1, 2).unflatten(2, (4, 4))
    assert_near(latents, theirs[name], 1e-4)


def test_the_last_denoising_steps_are_those_of_its_authors(pipe, theirs):
    steps, condition = denoising(STEPS), theirs["condition"].unflatten(0, (2, 6))
    steps.times = steps.times[:5]
    torch.manual_seed(6)
    drawn = pipe.transformer.denoised(condition, steps, published_noise(1, True), 2.0, 0.95).x
    assert theirs["late"].abs().max() < 30
    assert_near(drawn[0], theirs["late"])


def test_pixels_are_those_of_its_authors(pipe, theirs):
    pixels = pipe.decode(theirs["guided"][:1].flatten(2).transpose(1, 2))
    assert_near(pixels, theirs["pixels"].clamp(-1, 1), 1e-4)


def test_a_picture_depends_on_its_seed_alone(pipe):
    how = {"num_inference_steps": 4, "denoising_steps": 4, "guidance_scale": 2.0, "output_type": "latent"}
    both = pipe([3, 1], seed=[7, 8], **how)
    alone = pipe(1, seed=8, **how)
    torch.testing.assert_close(both.tokens[1:], alone.tokens, rtol=1e-4, atol=1e-5)
    assert torch.equal(both.rounds[1:], alone.rounds) and not torch.equal(both.rounds[0], both.rounds[1])
    assert both.rounds.flatten().bincount().tolist() == [2 * size for size in (2, 3, 5, 6)]
    assert pipe(3, seed=1, num_inference_steps=2, denoising_steps=2).images[0].size == (64, 64)


def test_the_command_line_draws_its_pictures(pipe, folder, tmp_path):
    from typer.testing import CliRunner

    def invoke(*more):
        out = ("-o", str(tmp_path / "out.png"), "--trace", str(tmp_path / "trace.png"), "--model", str(folder))
        return CliRunner().invoke(build(), ["generate", "image", *out, *more])

    run = invoke("--class-label", "3", "--steps", "4", "--guidance", "2.0", "--num-images", "2", "--seed", "7")
    assert run.exit_code == 0, run.output
    drawn = pipe(3, num_images_per_prompt=2, num_inference_steps=4, guidance_scale=2.0, seed=7)
    with Image.open(tmp_path / "out.png") as made, Image.open(tmp_path / "trace.png") as trace:
        assert made.size == (128, 64) == trace.size
        assert made.crop((64, 0, 128, 64)).tobytes() == drawn.images[1].tobytes() != drawn.images[0].tobytes()
    assert "plain (invariant): 32 units in 4 passes" in run.stderr and drawn.report.emitted == 32
    for more, said in (
        (("a dog",), "no argument is called 'prompt'"),
        ((), "class_labels is a class"),
        (("--class-label", "3", "--steps", "17"), "one token a step, not 17"),
        (("--class-label", "3", "--method", "reflection"), "exact drafts save none"),
    ):
        run = invoke(*more)
        assert run.exit_code and said in str(run.exception), run


def test_drafts_are_refused_with_the_reason(pipe, folder):
    for wrong in ({"method": "reflection"}, {"k": 4}):
        with pytest.raises(ValueError, match="each in one pass, and exact drafts save none"):
            mmspec.Pipeline.from_pretrained(folder, **wrong)
    assert isinstance(pipe.use("plain"), MARPipeline)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"class_labels": 5}, "there is no class 5: this model has the classes 0 to 4"),
        ({"class_labels": 1, "num_inference_steps": 17}, "are 1 to 16, one token a step, not 17"),
        ({"class_labels": 1, "num_inference_steps": 4, "denoising_steps": 1}, "in 2 to 1000 steps, and not 1"),
        ({"class_labels": 1, "num_inference_steps": 4, "denoising_steps": None}, "denoising_steps must be an integer"),
        ({"class_labels": 1, "num_inference_steps": 4, "temperature": None}, "temperature must be a number, got None"),
        ({"class_labels": 1, "num_inference_steps": 4, "temperature": float("inf")}, "must be a finite number >= 0"),
        ({"class_labels": 1, "num_images_per_prompt": None}, "num_images_per_prompt must be an integer >= 0, got None"),
        ({"class_labels": 1, "num_inference_steps": 4, "output_type": "gif"}, "output_type is one of"),
        (
            {"class_labels": 1, "num_inference_steps": 4, "guidance_scale": 0.5},
            "guidance_scale must be a finite number >= 1",
        ),
    ],
)
def test_wrong_calls_are_refused(pipe, call, said):
    with pytest.raises(ValueError, match=said):
        pipe(**call)


def test_files_that_do_not_fit_are_refused(published, tmp_path):
    weights, vae = published / "checkpoint-last.pth", published / "kl16.ckpt"
    with pytest.raises(ValueError, match=r"'mar' lacks the vae \(kl16.ckpt\)"):
        layouts()["mar"].convert([weights], tmp_path / "out", KNOWN)
    with pytest.raises(ValueError, match="width 32 is no published size: say num_heads="):
        layouts()["mar"].convert([weights, vae], tmp_path / "out", {})
    with pytest.raises(ValueError, match="it is the transformer of 'mar'"):
        layouts()["llamagen"].convert([weights], tmp_path / "out", {"grid": 4})
    state = torch.load(vae)
    state["model"]["decoder.extra.bias"] = torch.zeros(2)
    torch.save(state, tmp_path / "kl16.ckpt")
    with pytest.raises(ValueError, match="an autoencoder of these sizes has"):
        layouts()["mar"].convert([weights, tmp_path / "kl16.ckpt"], tmp_path / "out", KNOWN)


def test_denoising_steps_are_evenly_apart():
    steps = denoising(100)
    assert steps.times[:3] == [0, 10, 20] and steps.times[-1] == 999 and len(steps.times) == 100
    fewer = denoising(50, levels=500)
    assert fewer.times[-1] == 499 and fewer.of_x[-1] == denoising(1000).of_x[499]
    with pytest.raises(ValueError, match="in 2 to 500 steps, and not 501"):
        denoising(501, levels=500)
