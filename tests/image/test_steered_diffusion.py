"""Adaptive negatives in tiny pipelines of diffusers: what the judge sees, and what guidance leads away from."""

from typing import Any

import diffusers
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    SanaPipeline,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from PIL import Image
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

import mmspec
from mmspec.kits.pictures.steered_diffusion import SERVED, SteeredDiffusion, decoded, marginal

WIDTH, STEPS = 32, 6
TEXT = CLIPTextConfig(
    vocab_size=64, hidden_size=WIDTH, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
    projection_dim=WIDTH, bos_token_id=0, eos_token_id=1, hidden_act="gelu",
)  # fmt: skip


def words() -> CLIPTokenizer:
    """Of single letters."""
    letters = "abcdefghijklmnopqrstuvwxyz,."
    names = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    vocab = {name: number for number, name in enumerate(names)}
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77, unk_token="<|endoftext|>")


def autoencoder(channels: int = 4, **more: Any) -> AutoencoderKL:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return AutoencoderKL(block_out_channels=(32, 32), norm_num_groups=8, latent_channels=channels, **blocks, **more)


def unet(**more: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        block_out_channels=(32, 32), layers_per_block=1, sample_size=8, norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8, **more,
    )  # fmt: skip


def stable_diffusion() -> Any:
    return StableDiffusionPipeline(
        vae=autoencoder(), text_encoder=CLIPTextModel(TEXT), tokenizer=words(), unet=unet(cross_attention_dim=WIDTH),
        scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def stable_diffusion_xl() -> Any:
    conditions = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
    network = unet(cross_attention_dim=2 * WIDTH, projection_class_embeddings_input_dim=6 * 8 + WIDTH, **conditions)
    second = CLIPTextModelWithProjection(TEXT)
    return StableDiffusionXLPipeline(
        vae=autoencoder(), text_encoder=CLIPTextModel(TEXT), text_encoder_2=second, tokenizer=words(),
        tokenizer_2=words(), unet=network, scheduler=EulerDiscreteScheduler(),
    )  # fmt: skip


def stable_diffusion_3() -> Any:
    network = SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=64, caption_projection_dim=32, pooled_projection_dim=2 * WIDTH, out_channels=4,
    )  # fmt: skip
    return StableDiffusion3Pipeline(
        transformer=network, scheduler=FlowMatchEulerDiscreteScheduler(), vae=autoencoder(shift_factor=0.06),
        text_encoder=CLIPTextModelWithProjection(TEXT), tokenizer=words(),
        text_encoder_2=CLIPTextModelWithProjection(TEXT), tokenizer_2=words(), text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip


PIPES = {"sd": stable_diffusion, "xl": stable_diffusion_xl, "sd3": stable_diffusion_3}


@pytest.fixture(scope="module", params=PIPES)
def pipe(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    made = PIPES[request.param]()
    made.set_progress_bar_config(disable=True)
    for name in ("unet", "transformer"):
        network = getattr(made, name, None)
        for weights in [] if network is None else network.parameters():
            weights.data.mul_(1.5)  # so that words matter
    return made


class Judge:
    """Says what it is told to, one answer after another, and keeps what it saw."""

    def __init__(self, *answers: str | None) -> None:
        self.answers, self.seen = answers, list[Image.Image]()

    def __call__(self, picture: Image.Image) -> str | None:
        torch.rand(3)
        self.seen.append(picture)
        return self.answers[(len(self.seen) - 1) % len(self.answers)]


def drawn(pipe: Any, prompts: list[str], **more: Any) -> Tensor:
    call: dict[str, Any] = {"num_inference_steps": STEPS, "height": 16, "width": 16, "guidance_scale": 5.0, **more}
    generator = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    made: Tensor = pipe(prompts, generator=generator, output_type="latent", **call).images
    return made


def by_hand(pipe: Any, changes: dict[int, list[str]]) -> dict[str, Any]:
    """A callback that puts what the pipeline makes of negative prompts in their place, behind some steps."""
    names = [name for name in ("pooled_prompt_embeds", "add_text_embeds") if name in pipe._callback_tensor_inputs]

    def change(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if step not in changes:
            return {}
        given: dict[str, Any] = {"num_images_per_prompt": 1, "do_classifier_free_guidance": True, "device": "cpu"}
        given |= {"prompt_3": None} if "pooled_prompt_embeds" in names else {}
        given |= {"prompt_2": None} if names else {}
        made = pipe.encode_prompt(prompt=["x", "x"], negative_prompt=changes[step], **given)
        now = {"prompt_embeds": torch.cat([made[1], tensors["prompt_embeds"][2:]])}
        return now | {name: torch.cat([made[3], tensors[name][2:]]) for name in names}

    return {"callback_on_step_end": change, "callback_on_step_end_tensor_inputs": ["prompt_embeds", *names]}


def test_guidance_leads_away_from_a_list_that_grows(pipe: Any) -> None:
    """A row without new words keeps its list; the same word joins it once."""
    prompts = ["a red fox", "a pet"]
    judge = Judge("cat", "dog", "Cat ", None, "bird", "cat")
    away = mmspec.AdaptiveNegative(judge, negative_prompt="blur")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    ours = drawn(pipe, prompts, **away.during(pipe))
    assert torch.equal(torch.get_rng_state(), before) and len(judge.seen) == 2 * (STEPS - 1)
    named = ["cat", "dog", "cat", "bird", "cat", "cat", "dog", "cat"]
    assert away.said == list(zip((1, 1, 2, 3, 3, 4, 4, 5), (0, 1, 0, 0, 1, 0, 1, 0), named, strict=True))
    lists = {0: ["blur, cat", "blur, dog"], 2: ["blur, cat, bird", "blur, dog, cat"]}
    torch.testing.assert_close(ours, drawn(pipe, prompts, **by_hand(pipe, lists)))
    for others in ({0: lists[0]}, {1: lists[0], 2: lists[2]}, {0: lists[0], 2: ["bird", "cat"]}, {}):
        assert not torch.allclose(ours, drawn(pipe, prompts, **by_hand(pipe, others)), atol=1e-4)
    # The next call begins with empty lists, and may be asked less often.
    again = mmspec.AdaptiveNegative(Judge("cat", "dog"), "blur", most=1)
    first, second = (drawn(pipe, prompts, **again.during(pipe, every=2, start=1, stop=0.7)) for _ in range(2))
    assert torch.equal(first, second) and [at for at, *_ in again.said] == [3, 3, 3, 3]
    torch.testing.assert_close(first, drawn(pipe, prompts, **by_hand(pipe, {2: ["blur, cat", "blur, dog"]})))


def test_a_network_is_watched_as_long_as_the_callback_is_there(pipe: Any) -> None:
    network = getattr(pipe, "unet", None) or pipe.transformer
    how = mmspec.AdaptiveNegative(Judge("cat")).during(pipe)
    assert len(network._forward_pre_hooks) == 1
    del how
    assert not network._forward_pre_hooks


def test_the_judge_sees_what_the_network_predicts(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read off the scheduler's own step here, and off two latents there."""
    step, predicted = pipe.scheduler.step, list[Tensor]()

    def watched(output: Tensor, t: Any, x: Tensor, **how: Any) -> Any:
        flow = isinstance(pipe.scheduler, FlowMatchEulerDiscreteScheduler)
        clean = x - pipe.scheduler.sigmas[pipe.scheduler.step_index or 0] * output if flow else None
        result = step(output, t, x, **{**how, "return_dict": True})
        predicted.append(result.pred_original_sample if clean is None else clean)
        return (result.prev_sample,)

    monkeypatch.setattr(pipe.scheduler, "step", watched)
    judge = Judge(None)
    drawn(pipe, ["a red fox", "a pet"], **mmspec.AdaptiveNegative(judge).during(pipe, every=2))
    expected = [picture for at in (0, 2, 4) for picture in decoded(pipe, predicted[at])]
    assert len(judge.seen) == len(expected) == 6
    for ours, own in zip(judge.seen, expected, strict=True):
        a, b = (torch.tensor(list(each.tobytes()), dtype=torch.int16) for each in (ours, own))
        assert ours.size == (16, 16) and (a - b).abs().max() <= 1


@pytest.mark.parametrize("name", SERVED)
def test_a_state_tells_the_picture_with_every_scheduler(name: str) -> None:
    """With a network that knows one picture, all states of a sampler lie on a line through it."""
    more: dict[str, Any] = {"clip_sample": False} if name.startswith("DDIM") else {}
    if name == "PNDMScheduler":
        more = {"skip_prk_steps": True}  # as in pipelines; other steps are near
    if name == "UniPCMultistepScheduler":
        more = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
    scheduler = getattr(diffusers, name)(**more)
    scheduler.set_timesteps(8)
    clean, seen = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0)), list[Any]()
    a, s = marginal(scheduler, 0)
    noise = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    x = a * clean + s * noise

    class Pipe:
        num_timesteps = len(scheduler.timesteps)

    pipe = Pipe()
    pipe.scheduler = scheduler  # type: ignore[attr-defined]
    steered = SteeredDiffusion(lambda *given: [None, None], 1)
    steered._led_away = lambda pipe, words, tensors: {}  # type: ignore[method-assign,assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmspec.kits.pictures.steered_diffusion.decoded", lambda pipe, latents: seen.append(latents))
        for step, t in enumerate(scheduler.timesteps):
            a, s = marginal(scheduler, step)
            flow = name.startswith("FlowMatch") or "use_flow_sigmas" in more
            output = noise - clean if flow else noise
            read = x if name.startswith("FlowMatch") else scheduler.scale_model_input(x, t)
            steered._read[:] = [torch.cat([read, read])]
            x = scheduler.step(output, t, x, return_dict=False)[0]
            steered(pipe, step, t, {"latents": x})
    assert len(seen) >= 4
    for found in seen:
        torch.testing.assert_close(found, clean, atol=2e-3, rtol=1e-2)


def test_what_cannot_be_steered_is_refused(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    away = mmspec.AdaptiveNegative(Judge("cat"))
    with pytest.raises(ValueError, match="no negative half of its prompts"):
        drawn(pipe, ["x", "y"], guidance_scale=1.0, **away.during(pipe))
    for how, message in (
        ({"every": 0}, "at least 1, and not 0"),
        ({"every": 2.5}, "every must be an integer"),
        ({"start": -1}, "start= is a step, from 0 on, or a share of all steps"),
        ({"stop": 1.5}, "stop= is a step.*and not 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            away.during(pipe, **how)
    with pytest.raises(TypeError, match="returned int"):
        drawn(pipe, ["x", "y"], **mmspec.AdaptiveNegative(lambda picture: 3).during(pipe))  # type: ignore[arg-type,return-value]
    for scheduler in (DDPMScheduler(), FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)):
        monkeypatch.setattr(pipe, "scheduler", scheduler)
        with pytest.raises(ValueError, match="draw noise, or are not known"):
            away.during(pipe)


def test_pipelines_out_of_reach_are_refused() -> None:
    away, scheduler = mmspec.AdaptiveNegative(Judge("cat")), FlowMatchEulerDiscreteScheduler()
    parts = dict.fromkeys(("text_encoder", "tokenizer", "transformer"))
    for made, message in (
        (SanaPipeline(vae=None, scheduler=scheduler, **parts), "prompts of SanaPipeline have masks"),
        (
            FluxPipeline(vae=autoencoder(), scheduler=scheduler, text_encoder_2=None, tokenizer_2=None, **parts),
            "Flux.* no hold",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            away.during(made)


def test_a_pipeline_of_ours_is_steered_by_its_own_arguments(tiny: Any) -> None:
    with pytest.raises(ValueError, match="call it with callback_on_step_end=, steer_every="):
        mmspec.AdaptiveNegative(Judge("cat")).during(tiny)
