"""Input that the continuous plugin refuses, beyond what the tests of its parts show, and the messages."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Rejection
from mmspec_continuous.drafters.draft_model import ContinuousDraftModel, DraftModelOptions
from mmspec_continuous.drafters.jacobi import ContinuousJacobi
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline, mark
from mmspec_continuous.targets.continuous import ContinuousTarget
from tests.support.examples.continuous import captions, tiny
from tools.train.pictures.latents import measure, small_kl


def test_a_head_has_steps_and_scales():
    with pytest.raises(ValueError, match="at least one denoising step, got steps=0"):
        tiny(steps=0)
    for least in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="smallest scale of a component must be positive"):
            tiny(head="gaussian-mixture", least=least)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(float("nan"), "has mean nan and standard deviation nan"), (float("inf"), "has mean inf"), (2.0, "deviation 0")],
)
def test_latents_that_have_no_scale(wrong, said):
    """Latents with a channel that is constant or not finite."""
    vae, latents = small_kl(4, 8, (8, 8), groups=4), torch.randn(20, 16, 4)
    latents[..., 2] = wrong
    with pytest.raises(ValueError, match=rf"channel 2 of these latents {said}|channel 2 of these latents.*{said}"):
        measure(vae, latents)
    assert mark(vae) is None, "nothing is written down"


@pytest.mark.parametrize("step", [0, 1])
def test_a_noiseless_step_is_named(step):
    model = tiny()
    model.token_head.sigmas[step] = 0.0
    with pytest.raises(ValueError, match=rf"all tokens, denoising step {step} of 3: sigma is 0; a noiseless step"):
        ContinuousTarget(model)


def test_a_token_whose_scale_is_none_is_named():
    model = tiny(head="gaussian-mixture", components=3)
    model.token_head.least = -1e3  # past the check of the constructor
    with pytest.raises(ValueError, match="row 0: new unit 0: a component's sigma is -9"):
        Decoder(ContinuousTarget(model), ContinuousJacobi(), Rejection(), k=2).generate(captions([0]), 4)


@pytest.mark.parametrize("k", [0, 2])
def test_weights_that_are_not_finite_are_named_at_their_token_and_step(pipe, k):
    broken = tiny(
        **{name: pipe.transformer.config[name] for name in ("grid", "caption_dim", "cls_token_num", "token_dim")}
    )
    broken.register_to_config(latents=pipe.transformer.config.latents)
    broken.token_head.steps.data[2] = float("inf")
    made = ContinuousTextToImagePipeline(**{**pipe.components, "transformer": broken})
    made.set_progress_bar_config(disable=True)
    how = {"method": "plain"} if k == 0 else {"method": "reflection", "k": k}
    with pytest.raises(ValueError, match="row 0: new unit 0: the latent of denoising step 2 of 3 is not finite"):
        made.use(**how)("red heart", seed=1)


def test_a_draft_model_without_a_null_class_cannot_follow_guidance():
    target, drafter = ContinuousTarget(tiny()), tiny(null_caption=False)
    decoder = Decoder(target, ContinuousDraftModel(DraftModelOptions(model=drafter)), Rejection(), k=2)
    with pytest.raises(
        ValueError, match="the draft model cannot follow: this model was trained without a null caption"
    ):
        decoder.generate(captions([0], 2.0), 4)
    assert decoder.generate(captions([0]), 4).report.emitted == 4


def test_a_draft_model_of_another_schedule_names_all_that_differs():
    target = ContinuousTarget(tiny(latents=(1.0, 2.0)))
    drafter = ContinuousDraftModel(DraftModelOptions(model=tiny(latents=(1.0, 3.0), grid=5, steps=4, sigma_0=0.1)))
    said = (
        "scales of the autoencoder's latents.*|tokens per side.*|denoising steps: the draft model has 4, the target 3"
    )
    with pytest.raises(ValueError, match=said) as error:
        Decoder(target, drafter, Rejection())
    for words in ("latents", "the patching", "denoising steps", "sigma_0"):
        assert words in str(error.value)


WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def smaller(tmp_path):
    """A draft model in a folder of `save_pretrained`."""
    tiny().save_pretrained(tmp_path / "smaller")
    return tmp_path / "smaller"


def loaded(folder):
    return ContinuousDraftModel(DraftModelOptions(model=str(folder)))


def test_a_draft_model_of_half_a_file_is_refused(smaller):
    whole = load_file(smaller / WEIGHTS)
    assert loaded(smaller).model.model.config.grid == tiny().config.grid
    keys = sorted(whole)
    for kept, said in (
        ({key: whole[key] for key in keys[::2]}, "keys missing"),
        ({**whole, "odd": torch.zeros(1)}, "1 keys unexpected .odd"),
        ({**whole, keys[0]: whole[keys[0]].to(torch.int8)}, "are integers"),
        ({**whole, keys[0]: whole[keys[0]][None].clone()}, "1 keys of another shape"),
    ):
        save_file(kept, smaller / WEIGHTS)
        with pytest.raises(ValueError, match=said):
            loaded(smaller)


@pytest.mark.parametrize("decoy", [None, "other.safetensors"])
def test_a_draft_model_that_is_a_pickle_is_refused_beside_a_decoy_too(smaller, decoy):
    whole = load_file(smaller / WEIGHTS)
    torch.save(whole, smaller / "diffusion_pytorch_model.bin")
    (smaller / WEIGHTS).rename(smaller / decoy) if decoy else (smaller / WEIGHTS).unlink()
    with pytest.raises(ValueError, match="weights as a pickle" if not decoy else "there is no model.safetensors"):
        loaded(smaller)


def test_a_draft_model_of_ten_million_layers_is_refused(smaller):
    config = json.loads((smaller / "config.json").read_text())
    for claim, said in (
        ({"n_layer": 10**7}, "n_layer = 10000000"),
        ({"head_depth": 10**7}, "head_depth = 10000000"),
        ({"dim": 2**20}, "asks for"),
    ):
        (smaller / "config.json").write_text(json.dumps(config | claim))
        with pytest.raises(ValueError, match=said):
            loaded(smaller)


@pytest.mark.parametrize("name", ["no-such-folder/no-such-model", "./nowhere"])
def test_a_draft_model_that_is_not_there(name):
    with pytest.raises(ValueError, match=r"the model .* cannot be loaded"):
        loaded(name)
