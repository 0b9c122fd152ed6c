"""The pipeline's calls: what is drawn, in which form, what a callback may change, saved and loaded, refused."""

import numpy as np
import pytest
import torch

import mmspec
from mmspec_continuous.drafters.draft_model import ContinuousDraftModel
from mmspec_continuous.drafters.jacobi import ContinuousJacobi
from mmspec_continuous.pipeline import ContinuousTextToImageOutput, ContinuousTextToImagePipeline, mark, pictures_of
from tests.continuous.conftest import SIZES
from tests.support.examples.continuous import tiny
from tools.train.pictures.latents import measure, scaled, small_kl, tokens_of

PROMPTS = ["red heart", "blue cat face"]


def fresh(pipe, method="reflection", /, **how):
    made = ContinuousTextToImagePipeline(**pipe.components)
    made.set_progress_bar_config(disable=True)
    return made.use(method, **how)


def test_the_forms_of_an_output(pipe):
    forms = {form: pipe(PROMPTS, seed=1, output_type=form) for form in ("pil", "np", "pt", "latent")}
    made = forms["pil"]
    assert type(made) is ContinuousTextToImageOutput and [p.size for p in made.images] == [(8, 8)] * 2
    assert made.tokens.shape == (2, 4, 4, 4) and made.tokens.dtype == torch.float32
    assert made.rounds.shape == (2, 4, 4) and made.rounds[:, 0, 0].tolist() == [0, 0]
    assert torch.equal(forms["latent"].images, made.tokens)
    assert np.array_equal((forms["np"].images * 255).round().astype("uint8"), np.stack(made.images))
    decoded = pictures_of(pipe.vae, made.tokens.flatten(1, 2)) / 2 + 0.5
    assert torch.allclose(decoded, forms["pt"].images)
    images, report, tokens, rounds = pipe(PROMPTS, seed=1, return_dict=False)
    assert len(images) == 2 and torch.equal(tokens, made.tokens) and rounds.max() == report.rounds
    assert report.emitted == 32 and report.exactness == "lossless" and report.row_rounds < 30


@pytest.mark.parametrize("method", ["reflection", "draft-reflection", "denoise-ahead"])
def test_pictures_do_not_depend_on_their_batch(pipe, method):
    small = {"model": tiny(2, **{**SIZES, "latents": mark(pipe.vae)})} if method == "draft-reflection" else {}
    pipe = fresh(pipe, method, k=3, **small)
    together = pipe(PROMPTS, num_images_per_prompt=2, seed=[3, 4, 5, 6]).tokens
    for row, seed in enumerate((3, 4, 5, 6)):
        alone = pipe(PROMPTS[row // 2], seed=[seed]).tokens[0]
        assert torch.allclose(alone, together[row], atol=1e-3)
    assert not torch.allclose(together[0], together[1], atol=1e-2)


def test_methods(pipe):
    auto = fresh(pipe, "auto").decoder()
    assert (auto.name, auto.k, type(auto.drafter)) == ("reflection", 16, ContinuousJacobi)
    plain = fresh(pipe, "plain")
    assert plain.decoder().k == 0 and plain(PROMPTS[:1], seed=1).report.rounds == 15
    drafted = fresh(pipe, "draft-reflection", model=pipe.transformer, k=3)
    assert type(drafted.decoder().drafter) is ContinuousDraftModel
    exact = fresh(pipe, "cspd", model=pipe.transformer, rule="rejection")  # whose rule has no `tau`
    assert exact.decoder().rule.exactness == "lossless"
    report = drafted(PROMPTS[:1], seed=1).report
    assert report.acceptance_rate > 0.95  # it drafts for itself


def test_guidance(pipe):
    default, three, one = (pipe(PROMPTS, seed=2, guidance_scale=scale).tokens for scale in (None, 3.0, 1.0))
    assert torch.equal(default, three) and not torch.allclose(one, three, atol=1e-2)
    none = pipe(PROMPTS, seed=2, negative_prompt="").tokens
    assert torch.allclose(none, three, atol=1e-4)
    assert not torch.allclose(pipe(PROMPTS, seed=2, negative_prompt="apple").tokens, three, atol=1e-2)


def test_a_callback_may_change_guidance(pipe):
    seen = []

    def call(pipe, step, timestep, tensors):
        seen.append((timestep, tensors["tokens"]))
        pipe.guidance_scale = 1.5
        return {}

    plain = fresh(pipe, "plain")
    made = plain(PROMPTS, seed=2, callback_on_step_end=call).tokens
    assert [timestep for timestep, _ in seen] == list(range(1, 17))
    assert seen[0][1][:, 1:].isnan().all() and not seen[-1][1].isnan().any()
    other, same = (plain(PROMPTS, seed=2, guidance_scale=scale).tokens for scale in (1.5, 3.0))
    assert torch.allclose(made[:, 0, 0], same[:, 0, 0], atol=1e-5)
    assert not torch.allclose(made[:, 0, 1], same[:, 0, 1], atol=1e-3)
    assert not torch.allclose(made[:, 0, 0], other[:, 0, 0], atol=1e-3)


def test_saved_and_loaded(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    again = mmspec.Pipeline.from_pretrained(str(tmp_path), method="reflection", k=6)
    again.set_progress_bar_config(disable=True)
    assert type(again) is ContinuousTextToImagePipeline
    assert torch.allclose(again(PROMPTS, seed=1).tokens, pipe(PROMPTS, seed=1).tokens, atol=1e-4)
    drafted = fresh(pipe, "draft-reflection", model=str(tmp_path), k=2)
    assert drafted(PROMPTS[:1], seed=1).report.acceptance_rate > 0.95


def test_parts_that_do_not_fit(pipe, small_vae):
    with pytest.raises(ValueError, match="tokens: the transformer's have 3 numbers, the autoencoder's 4"):
        ContinuousTextToImagePipeline(tiny(token_dim=3), small_vae)
    other = small_kl(4, 8, (8, 8), groups=4)
    with pytest.raises(ValueError, match="trained on the latents of another autoencoder"):
        ContinuousTextToImagePipeline(pipe.transformer, other)


def test_mixtures_are_not_guided(pipe, small_vae):
    sizes = {name: pipe.transformer.config[name] for name in ("grid", "caption_dim", "cls_token_num", "token_dim")}
    parts = {**pipe.components, "transformer": tiny(**sizes, head="gaussian-mixture", components=3, least=0.3)}
    made = ContinuousTextToImagePipeline(**parts).use("reflection", k=4)
    made.set_progress_bar_config(disable=True)
    assert made(PROMPTS, seed=1).tokens.isfinite().all()
    with pytest.raises(ValueError, match="guidance of a Gaussian mixture is refused"):
        made(PROMPTS, guidance_scale=2.0)


def test_tokens_of_pictures_have_unit_variance():
    torch.manual_seed(0)
    vae, images = small_kl(4, 8, (8, 8), groups=4).eval(), torch.rand(40, 3, 8, 8) * 2 - 1
    with pytest.raises(ValueError, match="latents were not measured"), torch.no_grad():
        tokens_of(vae, images)
    with torch.no_grad():
        latents = vae.encode(images).latent_dist.mean
        measure(vae, latents.flatten(2).transpose(1, 2))
        tokens = tokens_of(vae, images)
        assert tokens.shape == (40, 16, 4)
        assert torch.allclose(tokens.flatten(0, 1).std(0), torch.ones(4), atol=1e-3)
        assert torch.allclose(tokens.flatten(0, 1).mean(0), torch.zeros(4), atol=1e-3)
        assert torch.allclose(pictures_of(vae, tokens), vae.decode(latents).sample.clamp(-1, 1), atol=1e-4)
    assert torch.allclose(scaled(vae, latents[0].flatten(1).T), tokens[0], atol=1e-5)
