"""Speculative denoising of flows: the law of trajectories, how often drafts are taken, and a FLUX of diffusers."""

import math
import warnings
from typing import Any

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)
from torch import Tensor, nn

import mmspec
from mmspec.core.distributions import Gaussian
from mmspec.testing.oracles import linear_joint
from mmspec.testing.statistics import LEVEL
from mmspec_continuous.denoising.schedulers import GaussianSteps, clean_of, output_of
from tests.support.close import assert_near
from tests.support.white import white_p_value, whitened

METHOD, ROWS, STEPS, DIM = "speculative-denoising", 4000, 6, 3
WIDE, NARROW = 1.5, 0.4


class Flow(nn.Module):
    """The optimal velocity of an even mixture of N(mean, spread²), in closed form; times run from 0 to 1."""

    def __init__(self, means: Tensor, spread: float) -> None:
        super().__init__()
        self.means, self.spread = means, spread

    def forward(self, hidden_states: Tensor, timestep: Tensor, img_ids: Tensor | None = None) -> tuple[Tensor]:
        assert img_ids is None or img_ids.shape == (7, 3)
        x, sigma = hidden_states.flatten(1), timestep.reshape(-1, 1)
        variance = ((1 - sigma) * self.spread).square() + sigma.square()
        apart = x[:, None] - (1 - sigma)[..., None] * self.means
        weight = torch.softmax(-apart.square().sum(-1) / variance / 2, -1)
        gain = ((1 - sigma) * self.spread**2 / variance)[..., None]
        clean = (weight[..., None] * (self.means + gain * apart)).sum(1)
        return (((x - clean) / sigma).reshape(hidden_states.shape),)


class Pipe(DiffusionPipeline):
    """Returns all states; the network is told times as transformers of flows are."""

    def __init__(self, transformer: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, rows: int, seed: int, **options: Any) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        self.scheduler.set_timesteps(STEPS)
        states = [torch.randn(rows, 1, DIM, generator=generator)]
        for t in self.scheduler.timesteps:
            told = t.expand(rows) / 1000
            made = self.transformer(states[-1], timestep=told, img_ids=torch.zeros(7, 3))[0]
            stepped = self.scheduler.step(made, t, states[-1], generator=generator, return_dict=False, **options)
            states.append(stepped[0])
        return torch.stack(states, 1).flatten(2)  # [rows, steps + 1, dim]


def piped(components: int = 1) -> Pipe:
    means = 1.5 * torch.randn(components, DIM, generator=torch.Generator().manual_seed(0))
    scheduler = FlowMatchEulerDiscreteScheduler(stochastic_sampling=True, shift=2.0)
    return Pipe(Flow(means if components > 1 else torch.zeros(1, DIM), NARROW if components > 1 else WIDE), scheduler)


def trajectory_p_value(seed: int = 0) -> float:
    """p-value of all noisy states: x' = (1 - sigma') gain x + sigma' e, for one wide Gaussian around 0."""
    pipe = piped()
    with mmspec.enable(pipe, METHOD, k=3) as spec:
        states = pipe(ROWS, seed)
    assert spec.report.steps == STEPS and min(spec.report.accepted_by_depth) > ROWS // 50
    sigmas = pipe.scheduler.sigmas.tolist()
    weights, noise = torch.zeros(STEPS, STEPS), torch.tensor([1.0, *sigmas[1:STEPS]])
    for i in range(STEPS - 1):
        at = 1 - sigmas[i]
        weights[i + 1, i] = (1 - sigmas[i + 1]) * at * WIDE**2 / ((at * WIDE) ** 2 + sigmas[i] ** 2)
    mean, covariance = linear_joint(weights, torch.zeros(STEPS), noise)
    return white_p_value(torch.cat([whitened(states[:, :-1, d], mean, covariance) for d in range(DIM)], 1))


def test_whole_trajectories_follow_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(trajectory_p_value(seed) for seed in (0, 1)) > LEVEL
    sigma = GaussianSteps.sigma
    monkeypatch.setattr(GaussianSteps, "sigma", lambda self, t, like: 1.1 * sigma(self, t, like))
    assert trajectory_p_value() < LEVEL


def test_a_mixture_is_sampled_as_without_speculation() -> None:
    from scipy.stats import ks_2samp

    pipe = piped(components=2)
    plain = pipe(ROWS, 1)
    with mmspec.enable(pipe, METHOD, k=4) as spec:
        ours = pipe(ROWS, 2)
    assert min(spec.report.accepted_by_depth[:3]) > ROWS // 50
    looks = [*torch.eye(DIM), torch.ones(DIM), pipe.transformer.means[0]]
    for i in (2, 4, -1):
        p = [float(ks_2samp(plain[:, i] @ w, ours[:, i] @ w).pvalue) for w in looks]
        assert min(p) * len(p) > LEVEL


def test_drafts_are_taken_as_often_as_reflection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """P(y = x) of two Gaussians of one spread, averaged over drafts, is 2 Phi(-|difference| / (2 sigma))."""
    couple, taken, expected = Gaussian.couple, list[Tensor](), list[Tensor]()

    def watched(self: Gaussian, draft: Any, x: Tensor, noise: Any) -> Tensor:
        y = couple(self, draft, x, noise)
        taken.append((y == x).all(-1).flatten().float())
        apart = (self.mean - draft.mean).norm(dim=-1).flatten() / self.sigma
        expected.append(torch.erfc(apart / (2 * math.sqrt(2))))
        return y

    monkeypatch.setattr(Gaussian, "couple", watched)
    pipe = piped(components=2)
    with mmspec.enable(pipe, METHOD, k=3):
        pipe(ROWS, 3)
    took, chance = torch.cat(taken), torch.cat(expected)
    assert len(took) > 2 * ROWS and 0.1 < took.mean() < 0.95
    spread = (chance * (1 - chance)).sum().sqrt()
    assert abs(took.sum() - chance.sum()) < 4 * spread


def test_a_step_is_the_gaussian_that_is_read_off_it() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)
    scheduler.set_timesteps(5)
    x, output = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    for index, t in enumerate(scheduler.timesteps[:-1]):
        now, then = scheduler.sigmas[index : index + 2]
        twin, clean = GaussianSteps(scheduler, {}), clean_of(scheduler, index, output, x)
        assert_near(output_of(scheduler, index, clean, x), output, 1e-4)
        assert_near(clean, x - now * output)
        assert twin.sigma(t, x) == pytest.approx(float(then))
        assert_near(twin.mean(output, t, x), (1 - then) * clean)
        x = scheduler.step(output, t, x).prev_sample


def test_serial_network_calls_at_thirty_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STEPS", 30)
    pipe = piped(components=2)
    with mmspec.enable(pipe, METHOD) as spec:
        pipe(1, 0)
    print(f"{spec.report.steps} steps in {spec.report.calls} network calls")
    assert spec.report.steps == 30 and spec.report.calls < 30 / 1.3


def test_schedulers_without_noise_and_times_of_tokens_are_refused_or_plain() -> None:
    still = Pipe(Flow(torch.zeros(1, DIM), WIDE), FlowMatchEulerDiscreteScheduler())
    with pytest.raises(ValueError, match="stochastic_sampling=False adds no noise"):
        mmspec.enable(still, METHOD)
    pipe = piped()
    with mmspec.enable(pipe, METHOD) as spec, pytest.warns(UserWarning, match="every token has a time of its own"):
        pipe(2, 0, per_token_timesteps=torch.full((2, 1), 1000.0))
    assert spec.report.calls == STEPS


def test_a_flux_of_diffusers() -> None:
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=12, pooled_projection_dim=6, axes_dims_rope=(2, 2, 4), guidance_embeds=True,
    ).eval()  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(stochastic_sampling=True, use_dynamic_shifting=True)
    parts = dict.fromkeys(("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
    pipe = FluxPipeline(transformer=transformer, scheduler=scheduler, **parts)
    pipe.set_progress_bar_config(disable=True)
    given = {"prompt_embeds": torch.randn(2, 5, 12), "pooled_prompt_embeds": torch.randn(2, 6)}
    own, seen = transformer.forward, list[tuple[Tensor, Tensor]]()

    def call() -> Tensor:
        torch.manual_seed(1)
        how = {"num_inference_steps": 8, "height": 64, "width": 64, "output_type": "latent"}
        return pipe(**given, **how).images

    plain = call()
    with warnings.catch_warnings(), mmspec.enable(pipe) as spec:
        warnings.simplefilter("error", UserWarning)
        speculative = transformer.forward

        def watched(**kwargs: Any) -> Any:
            made = speculative(**kwargs)
            seen.append((made[0], own(**kwargs)[0]))
            return made

        transformer.forward = watched
        ours = call()
        transformer.forward = speculative
    assert ours.shape == plain.shape and spec.report.steps == len(seen) == 8
    assert spec.report.drafted > 8  # of random weights, few of which are taken
    for made, alone in seen:
        torch.testing.assert_close(made, alone, atol=1e-4, rtol=1e-4)
