"""Speculative denoising of live diffusers pipelines: the distribution of trajectories, and what is refused or left
alone.
"""

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
from diffusers import (
    DDIMPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UNet2DModel,
)
from diffusers.models.unets.unet_2d import UNet2DOutput
from torch import Tensor, nn

import mmspec
from mmspec.core.distributions import Gaussian
from mmspec.testing.oracles import linear_joint
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec_continuous.denoising.denoiser_call import map_leaves
from mmspec_continuous.denoising.drafting import Predictions
from mmspec_continuous.denoising.schedulers import SUPPORTED, GaussianSteps, clean_of, output_of
from tests.support.white import white_p_value, whitened

METHOD, ROWS, STEPS, GUIDANCE = "speculative-denoising", 5000, 6, 2.0
NARROW, WIDE = 0.35, 1.5
SHAPE = (2, 1, 2)
DIM = 4


class Mixture(nn.Module):
    """The optimal denoiser of an even mixture of N(mean + condition, spread²): its noise in closed form."""

    def __init__(self, scheduler: Any, means: Tensor, spread: float) -> None:
        super().__init__()
        self.spread = spread
        self.kept, self.means, self.calls, self.seen = scheduler.alphas_cumprod, means, 0, 0

    def forward(
        self, sample: Tensor, timestep: Any, condition: Tensor | None = None, extra: Any = None
    ) -> UNet2DOutput:
        self.calls, self.seen = self.calls + 1, self.seen + len(sample)
        return UNet2DOutput(sample=self.noise(sample, timestep, condition))

    def noise(self, sample: Tensor, timestep: Any, condition: Tensor | None) -> Tensor:
        x, kept = sample.flatten(1), self.kept[torch.as_tensor(timestep).long()].reshape(-1, 1)
        at = self.means + (0 if condition is None else condition[:, None])  # [batch, component, dim]
        variance = kept * self.spread**2 + 1 - kept
        apart = x[:, None] - kept.sqrt()[..., None] * at
        weight = torch.softmax(-apart.square().sum(-1) / variance / 2, -1)
        clean = (weight[..., None] * (at + (self.spread**2 * kept.sqrt() / variance)[..., None] * apart)).sum(1)
        return ((x - kept.sqrt() * clean) / (1 - kept).sqrt()).reshape(sample.shape)


class Pipe(DiffusionPipeline):
    """A pipeline with guidance where there are conditions; returns all states, and checks every prediction."""

    def __init__(self, unet: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)

    @torch.no_grad()
    def __call__(
        self,
        rows: int = 1,
        steps: int = STEPS,
        shape: tuple[int, ...] = SHAPE,
        condition: Tensor | None = None,
        generator: Any = None,
        drift: bool = False,
        extra: Any = None,
        **options: Any,
    ) -> Tensor:
        self.scheduler.set_timesteps(steps)
        one = not isinstance(generator, list)
        noise = [torch.randn(rows if one else 1, *shape, generator=g) for g in ([generator] if one else generator)]
        states = [torch.cat(noise) * self.scheduler.init_noise_sigma]
        for t in self.scheduler.timesteps:
            x = states[-1]
            seen = self.scheduler.scale_model_input(torch.cat([x, x]) if condition is not None else x, t)
            given = None if condition is None else torch.cat([torch.zeros_like(condition), condition])
            given = given + 0.01 * t if drift else given
            made = self.unet(seen, t, given, extra=extra).sample
            torch.testing.assert_close(made, self.unet.noise(seen, t, given), atol=1e-4, rtol=1e-4)
            if condition is not None:
                free, bound = made.chunk(2)
                made = free + GUIDANCE * (bound - free)
            states.append(self.scheduler.step(made, t, x, generator=generator, **options).prev_sample)
        return torch.stack(states, 1)  # [rows, steps + 1, *shape]


def piped(scheduler: Any = None, components: int = 1, dim: int = DIM) -> Pipe:
    """A pipeline over one wide Gaussian around the condition, or over many narrow ones."""
    scheduler = scheduler or DDPMScheduler(clip_sample=False)
    means = 1.2 * torch.randn(components, dim, generator=torch.Generator().manual_seed(0))
    many = components > 1
    return Pipe(Mixture(scheduler, means if many else torch.zeros(1, dim), NARROW if many else WIDE), scheduler)


def oracle(scheduler: DDPMScheduler, variance: str) -> tuple[Tensor, Tensor]:
    """The chain x' = a x + b m + s e of one Gaussian around m (DDPM eq. 7): its mean for m = 1, its covariance."""
    scheduler.set_timesteps(STEPS)
    times = [int(t) for t in scheduler.timesteps]
    weights, bias, noise = torch.zeros(STEPS, STEPS), torch.zeros(STEPS), torch.ones(STEPS)
    for i, t in enumerate(times[:-1]):
        now, then = scheduler.alphas_cumprod[t], scheduler.alphas_cumprod[times[i + 1]]
        alpha = now / then
        gain = WIDE**2 * now.sqrt() / (now * WIDE**2 + 1 - now)
        of_clean, of_state = then.sqrt() * (1 - alpha) / (1 - now), alpha.sqrt() * (1 - then) / (1 - now)
        weights[i + 1, i] = of_state + of_clean * gain
        bias[i + 1] = of_clean * (1 - gain * now.sqrt())
        noise[i + 1] = ((1 - alpha) * (1 if variance == "fixed_large" else (1 - then) / (1 - now))).sqrt()
    return linear_joint(weights, bias, noise)


def trajectory_p_value(variance: str = "fixed_small", seed: int = 0, accepting: float = 0.9) -> float:
    """p-value of all noisy states of guided trajectories, every row with a condition of its own."""
    scheduler = DDPMScheduler(clip_sample=False, variance_type=variance)
    pipe, generator = piped(scheduler), torch.Generator().manual_seed(seed)
    condition = torch.randn(ROWS, DIM, generator=generator)
    with mmspec.enable(pipe, METHOD, k=3) as spec:
        states = pipe(ROWS, condition=condition, generator=generator).flatten(2)
    assert 0.15 < spec.report.acceptance_rate <= accepting and len(spec.report.accepted_by_depth) == 3
    assert min(spec.report.accepted_by_depth) > ROWS // 50  # every depth of a chain is tried
    mean, covariance = oracle(scheduler, variance)
    # The last step adds no noise: the sample is a function of the state before.
    last, t = states[:, -2], scheduler.timesteps[-1]
    kept = scheduler.alphas_cumprod[t]
    gain = WIDE**2 * kept.sqrt() / (kept * WIDE**2 + 1 - kept)
    expected = GUIDANCE * condition + gain * (last - kept.sqrt() * GUIDANCE * condition)
    torch.testing.assert_close(states[:, -1], expected, atol=2e-3, rtol=1e-3)
    centred = states[:, :-1] - mean[:, None].float() * GUIDANCE * condition[:, None]
    return white_p_value(torch.cat([whitened(centred[..., d], torch.zeros(STEPS), covariance) for d in range(DIM)], 1))


@pytest.mark.parametrize("variance", ["fixed_small", "fixed_large"])
def test_whole_guided_trajectories_follow_the_closed_form(variance: str) -> None:
    assert max(trajectory_p_value(variance, seed) for seed in (0, 1)) > LEVEL


def test_mutants_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sigma, advance = GaussianSteps.sigma, Predictions.advance
    with monkeypatch.context() as m:  # a spread that is not the scheduler's
        m.setattr(GaussianSteps, "sigma", lambda self, t, like: 1.1 * sigma(self, t, like))
        assert trajectory_p_value() < LEVEL
    with monkeypatch.context() as m:  # all drafts are kept
        m.setattr(Gaussian, "couple", lambda self, draft, x, noise: x)
        assert trajectory_p_value(accepting=1.0) < LEVEL
    with monkeypatch.context() as m:  # a prediction made for a state that was refused
        m.setattr(Predictions, "advance", lambda self, index, same: advance(self, index, torch.ones_like(same)))
        with pytest.raises(AssertionError, match="not close"):
            trajectory_p_value()


def test_a_mixture_is_sampled_as_without_speculation() -> None:
    from scipy.stats import ks_2samp

    pipe = piped(components=2)
    plain = pipe(ROWS, generator=torch.Generator().manual_seed(1)).flatten(2)
    with mmspec.enable(pipe, METHOD, k=4):
        ours = pipe(ROWS, generator=torch.Generator().manual_seed(2)).flatten(2)
    looks = [plain[0].new_tensor(w) for w in torch.eye(DIM).tolist()] + [torch.ones(DIM), pipe.unet.means[0]]
    for i, j in ((2, 2), (4, 4), (-1, -1), (2, 4)):
        p = [float(ks_2samp((plain[:, i] + plain[:, j]) @ w, (ours[:, i] + ours[:, j]) @ w).pvalue) for w in looks]
        assert min(p) * len(p) > LEVEL


def working() -> dict[str, tuple[Any, dict[str, Any]]]:
    solver = {"algorithm_type": "sde-dpmsolver++", "timestep_spacing": "leading"}
    return {
        "ddpm, clipped": (DDPMScheduler(), {}),
        "ddpm, samples": (DDPMScheduler(prediction_type="sample", variance_type="fixed_small_log"), {}),
        "ddim": (DDIMScheduler(clip_sample=False), {"eta": 0.7}),
        "euler": (EulerAncestralDiscreteScheduler(timestep_spacing="leading"), {}),
        "euler, velocities": (EulerAncestralDiscreteScheduler(prediction_type="v_prediction"), {}),
        "solver": (DPMSolverMultistepScheduler(**solver, solver_order=1), {}),
        "solver of second order": (DPMSolverMultistepScheduler(**solver, prediction_type="v_prediction"), {}),
    }


@pytest.mark.parametrize("name", working())
def test_a_step_is_the_gaussian_that_is_read_off_it(name: str) -> None:
    scheduler, options = working()[name]
    scheduler.set_timesteps(8)
    x = torch.randn(3, *SHAPE) * scheduler.init_noise_sigma
    for index, t in enumerate(scheduler.timesteps[:6]):
        scheduler.scale_model_input(x, t)
        output = torch.randn_like(x)
        twin = GaussianSteps(scheduler, options)
        torch.testing.assert_close(output_of(scheduler, index, clean_of(scheduler, index, output, x), x), output,
                                   atol=2e-3, rtol=1e-3)  # fmt: skip
        sigma, mean = twin.sigma(t, x), twin.mean(output, t, x)
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(index))
        x = scheduler.step(output, t, x, generator=torch.Generator().manual_seed(index), **options).prev_sample
        assert sigma > 0
        torch.testing.assert_close(x, mean + sigma * noise, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler", "solver of second order"])
def test_serial_network_calls_at_fifty_steps(name: str) -> None:
    scheduler, options = working()[name] if name != "ddpm" else (None, {})
    if name.startswith("solver"):
        scheduler = DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++")
    pipe, ratios = piped(scheduler, components=8, dim=64), []
    with mmspec.enable(pipe, METHOD) as spec:
        for seed in range(2):
            pipe.unet.calls = 0
            pipe(steps=50, shape=(4, 4, 4), generator=torch.Generator().manual_seed(seed), **options)
            assert (spec.report.steps, spec.report.calls) == (50, pipe.unet.calls)
            assert spec.report.saved == 50 - pipe.unet.calls
            assert spec.report.acceptance_length == pytest.approx(49 / (pipe.unet.calls - 1))
            ratios.append(50 / pipe.unet.calls)
    print(f"{name}: {', '.join(f'{r:.2f}' for r in ratios)} x fewer")
    assert min(ratios) > 1.8


def test_a_row_of_a_batch_is_the_row_alone() -> None:
    pipe = piped(components=3)
    with mmspec.enable(pipe, METHOD, k=3) as spec:
        together = pipe(3, steps=10, generator=[torch.Generator().manual_seed(s) for s in range(3)])
        assert pipe.unet.seen < 3 * 10 * 4 and "steps in" in str(spec.report)
        alone = [pipe(1, steps=10, generator=[torch.Generator().manual_seed(s)]) for s in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_without_drafts_it_is_the_plain_pipeline() -> None:
    pipe = piped(components=3)
    plain = pipe(2, generator=torch.Generator().manual_seed(3))
    with mmspec.enable(pipe, METHOD, k=0):
        assert torch.equal(pipe(2, generator=torch.Generator().manual_seed(3)), plain)


def tiny_unet(**options: Any) -> dict[str, Any]:
    return dict(sample_size=8, block_out_channels=(8,), layers_per_block=1, norm_num_groups=4, **options)


def test_a_pipeline_of_diffusers() -> None:
    torch.manual_seed(0)
    unet = UNet2DModel(
        **tiny_unet(down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), add_attention=False)
    )
    pipe = DDPMPipeline(unet, DDPMScheduler())
    pipe.set_progress_bar_config(disable=True)

    def call() -> Tensor:
        return pipe(2, torch.Generator().manual_seed(0), num_inference_steps=12, output_type="pt").images

    before, plain = dict(vars(unet)), call()
    with mmspec.enable(pipe) as spec:
        ours = call()
        assert (spec.method, spec.report.method) == (METHOD, METHOD) and type(pipe).__name__ in spec.why
    assert ours.shape == plain.shape and spec.report.calls < 12 and spec.report.steps == 12
    assert dict(vars(unet)).keys() == before.keys() and torch.equal(call(), plain)


def test_guidance_of_stable_diffusion() -> None:
    torch.manual_seed(0)
    blocks = dict(down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",))
    unet = UNet2DConditionModel(**tiny_unet(**blocks, cross_attention_dim=8, attention_head_dim=2)).eval()
    parts = dict.fromkeys(("vae", "text_encoder", "tokenizer", "safety_checker", "feature_extractor"))
    # Random weights predict samples that hardly change; as predicted noise they would fit no data.
    scheduler = DDPMScheduler(prediction_type="sample", steps_offset=1, clip_sample=False)
    pipe = StableDiffusionPipeline(unet=unet, scheduler=scheduler, requires_safety_checker=False, **parts)
    pipe.set_progress_bar_config(disable=True)
    embeds = dict(prompt_embeds=torch.randn(2, 5, 8), negative_prompt_embeds=torch.zeros(2, 5, 8))
    seen: list[tuple[Tensor, ...]] = []
    own = unet.forward

    def call() -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return pipe(
            **embeds, num_inference_steps=10, height=64, width=64, output_type="latent", generator=generator
        ).images

    plain = call()
    with warnings.catch_warnings(), mmspec.enable(pipe, METHOD) as spec:
        warnings.simplefilter("error", UserWarning)
        speculative, step = unet.forward, scheduler.step

        def watched(x: Tensor, t: Tensor, **kwargs: Any) -> Any:
            made = speculative(x, t, **kwargs)
            seen.append((made[0], own(x, t, **kwargs)[0]))
            return made

        unet.forward = watched
        ours = call()
        unet.forward = speculative
        assert scheduler.step is step
    assert ours.shape == plain.shape and spec.report.calls < len(seen) == 10
    for made, alone in seen:
        torch.testing.assert_close(made, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"drift": True}, "conditions change from step to step"),
        ({"extra": torch.zeros(7)}, "a tensor of 7 rows with 6 states"),
        ({"extra": object()}, "is given a object"),
    ],
)
def test_what_is_not_understood_goes_on_plainly(given: dict[str, Any], why: str) -> None:
    """The pipeline checks every prediction against the network's own."""
    pipe = piped()
    with mmspec.enable(pipe, METHOD) as spec, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipe(3, condition=torch.randn(3, DIM), **given)
    assert len(caught) == 1 and why in str(caught[0].message)
    assert spec.report.calls >= STEPS - 1


def test_states_that_change_between_steps_go_on_plainly() -> None:
    pipe, kept = piped(), torch.zeros(1, *SHAPE)
    with (
        mmspec.enable(pipe, METHOD) as spec,
        pytest.warns(UserWarning, match="does not see what the scheduler returned"),
    ):
        scheduler, x = pipe.scheduler, torch.randn(1, *SHAPE)
        scheduler.set_timesteps(4)
        for t in scheduler.timesteps:
            x = kept + scheduler.step(pipe.unet(x, t).sample, t, x).prev_sample + 0.1  # as inpainting does
    assert spec.report.calls == spec.report.steps == 4


@pytest.mark.parametrize(
    ("scheduler", "why"),
    [
        (DDPMScheduler(variance_type="learned_range"), "its variance is learned_range"),
        (DDPMScheduler(variance_type="fixed_large_log"), "is no variance"),
        (EulerDiscreteScheduler(), "adds no noise"),
        (DPMSolverMultistepScheduler(), "algorithm_type='dpmsolver\\+\\+' adds no noise"),
    ],
)
def test_refused_schedulers(scheduler: Any, why: str) -> None:
    with pytest.raises(ValueError, match=rf"{why}.*Those that work: DDPMScheduler.*EulerAncestralDiscreteScheduler"):
        mmspec.enable(piped(scheduler), METHOD)
    assert "step" not in vars(scheduler)


class Shown(Pipe):
    """With an argument for noise that is on by default, as pipelines for editing have it."""

    def __call__(self, rows: int = 1, eta: float = 1.0) -> Tensor:
        return super().__call__(rows, eta=eta)


@pytest.mark.parametrize("name", [name for name, kind in SUPPORTED.items() if kind.prediction is None])
def test_auto_takes_a_pipeline_only_if_its_default_call_adds_noise(name: str) -> None:
    solver = {"algorithm_type": "sde-dpmsolver++"} if name.startswith("DPM") else {}
    pipe = piped(getattr(diffusers, name)(**solver))
    before = [dict(vars(part)) for part in (pipe, pipe.unet, pipe.scheduler)]
    if name.startswith("DDIM"):
        said = (
            r"Pipe with DDIM\w* adds none as it is called by default: .* mmspec.enable\(pipe, 'speculative-denoising'\)"
        )
        with pytest.raises(ValueError, match=said):
            mmspec.enable(pipe)
    else:
        mmspec.enable(pipe).disable()
    assert [dict(vars(part)) for part in (pipe, pipe.unet, pipe.scheduler)] == before
    with mmspec.enable(pipe) if not name.startswith("DDIM") else mmspec.enable(pipe, METHOD) as spec:
        pipe(2, **({"eta": 1.0} if name.startswith("DDIM") else {}))
    assert spec.report.steps == STEPS


def test_the_noise_of_a_pipelines_own_default_counts() -> None:
    unet = UNet2DModel(
        4, 1, 1, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), block_out_channels=(8,),
        norm_num_groups=4, layers_per_block=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"a DDIMPipeline with DDIMScheduler adds none .* default \(eta=0\.0\)"):
        mmspec.enable(DDIMPipeline(unet, DDIMScheduler()))
    noisy = Shown(piped(DDIMScheduler()).unet, DDIMScheduler())
    with mmspec.enable(noisy) as spec:
        noisy(2)
    assert spec.report.steps == STEPS


def test_deterministic_ddim_is_refused_in_the_call_and_leaves_nothing() -> None:
    pipe = piped(DDIMScheduler())
    with pytest.raises(ValueError, match=r"called with eta=0\.0 adds none"), mmspec.enable(pipe, METHOD):
        pipe(eta=0.0)
    assert not {"step", "set_timesteps", "forward"} & (vars(pipe.scheduler).keys() | vars(pipe.unet).keys())


def test_disable_puts_all_back_and_arguments_are_checked() -> None:
    pipe = piped()
    before = [dict(vars(part)) for part in (pipe, pipe.unet, pipe.scheduler)]
    first = mmspec.enable(pipe)
    spec = mmspec.enable(pipe, METHOD, k=2)
    first.disable()
    assert "disabled" in repr(first) and "disabled" not in repr(spec)
    with pytest.raises(ValueError, match="replaced already, as by another pipeline"):
        mmspec.enable(piped(pipe.scheduler), METHOD)
    mmspec.disable(pipe)
    assert [dict(vars(part)) for part in (pipe, pipe.unet, pipe.scheduler)] == before and spec.report is None
    with pytest.raises(ValueError, match=r"takes k= and no rule=, no depth="):
        mmspec.enable(pipe, METHOD, rule="match", depth=3)
    with pytest.raises(ValueError, match="did you mean 'method'"):
        mmspec.enable(pipe, metod=METHOD)
    with mmspec.enable(pipe, METHOD, k=3) as spec:
        assert repr(spec) == f"<mmspec {METHOD} on {type(pipe).__name__}, k=3>"
    assert "disabled" in repr(spec)
    for method in ("prompt-lookup", "image:mc-sjd", "plain"):
        with pytest.raises(ValueError, match=f"keeps its own loop. Methods that fit: {METHOD}"):
            mmspec.enable(pipe, method)


def test_a_model_that_mmspec_decodes_is_refused_with_what_the_adapter_is_for() -> None:
    with pytest.raises(ValueError, match=f"'{METHOD}' is an adapter, .* For diffusers pipelines"):
        mmspec.enable(llama(), METHOD)


def test_nests_keep_their_types() -> None:
    nest = {"a": (torch.ones(1), [None]), "b": UNet2DOutput(sample=torch.ones(2))}
    changed = map_leaves(nest, lambda leaf: leaf if leaf is None else leaf + 1)
    assert isinstance(changed["b"], UNet2DOutput) and float(changed["b"].sample.sum()) == 4
    assert changed["a"][1] == [None] and float(changed["a"][0]) == 2
    assert map_leaves(SimpleNamespace, type) is type


def test_a_copy_of_an_enabled_pipeline_would_call_the_originals_network() -> None:
    pipe = piped(components=2)
    with mmspec.enable(pipe, METHOD, k=3), pytest.raises(TypeError, match="that is enabled is not copied"):
        copy.deepcopy(pipe)
    assert copy.deepcopy(pipe).unet is not pipe.unet
