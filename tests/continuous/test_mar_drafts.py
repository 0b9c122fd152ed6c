"""Drafts for MAR: the published test, the law of what a refused draft leaves, and the released loop written out."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from scipy import stats
from torch import Tensor
from typer.testing import CliRunner

import mmspec
from mmspec.cli.app import build
from mmspec_continuous.mar_pipeline import MARPipeline
from mmspec_continuous.models import mar_drafts
from mmspec_continuous.models.mar import MAR, Denoised, denoising
from mmspec_continuous.models.mar_drafts import (
    DraftedOptions,
    RowNoise,
    draw_drafted,
    left_of,
    log_ratio,
    placed,
)

STEPS, SETS, CELLS, DIM = 4, 12, 16, 4


def mar(seed: int, dim: int = 32, **more: Any) -> MAR:
    """A small model of random weights."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"depth": 1, "num_heads": 2, "hidden": 48, "buffer_size": 2, "num_classes": 5}
    made = MAR(DIM, 4, dim=dim, head_width=32, head_depth=1, **{**sizes, **more}).eval()
    for weights in made.parameters():
        weights.data = 0.3 * torch.randn(weights.shape)
    return made.requires_grad_(False)


@pytest.fixture(scope="module")
def pair() -> tuple[MAR, MAR]:
    return mar(0), mar(1, dim=16)


def sources(*seeds: int) -> RowNoise:
    return RowNoise([torch.Generator().manual_seed(seed) for seed in seeds])


def ends(rows: int, seed: int = 0) -> Denoised:
    """Random ends of denoising, of five tokens a row."""
    return Denoised(*torch.randn(3, rows, 5, DIM, generator=torch.Generator().manual_seed(seed)) / 2)


@pytest.mark.parametrize(("name", "tau", "power"), [("released", 42.0**2, -1), ("paper", 1.0, 1)])
def test_the_test_is_the_published_one(name: str, tau: float, power: int) -> None:
    """The ratio of the two last steps' densities, distances divided by √τ, times F: by torch's own distributions."""
    theirs, own, heat = ends(2, 1), ends(2, 2), 0.9
    p, q = (torch.distributions.Normal(each.x, each.log_sigma.exp() * heat) for each in (own, theirs))
    x, root = theirs.x, tau**0.5
    wide = [torch.distributions.Normal(each.mean, each.stddev * root) for each in (p, q)]
    ratio = sum(sign * each.log_prob(x).sum(-1) for sign, each in zip((1, -1), wide, strict=True))
    spread = (own.spreads - theirs.spreads).sum(-1)
    expected = ratio + (spread if name == "released" else -spread)
    torch.testing.assert_close(log_ratio(theirs, own, heat, tau, power), expected)
    assert (log_ratio(theirs, own, heat, 42.0**2, power) > log_ratio(theirs, own, heat, 1.0, power)).all()


def test_what_a_refused_draft_leaves_has_its_law() -> None:
    """In one dimension (p - q / F)+ is integrated numerically."""
    rows, heat = 20_000, 0.8
    one = torch.tensor([0.3, -0.7, 0.4]).view(3, 1, 1, 1).expand(3, rows, 1, 1)
    two = torch.tensor([-0.5, -0.4, 0.1]).view(3, 1, 1, 1).expand(3, rows, 1, 1)
    theirs, own, noise = Denoised(*one), Denoised(*two), RowNoise([torch.Generator().manual_seed(0)])
    flat = [
        Denoised(*(part.transpose(0, 1) for part in (each.x, each.log_sigma, each.spreads))) for each in (theirs, own)
    ]
    drawn = left_of(*flat, heat, -1, noise, 100).flatten()
    at = torch.linspace(-6, 6, 20_001, dtype=torch.float64)
    p, q = (
        torch.distributions.Normal(float(mean), math.exp(float(sigma)) * heat).log_prob(at).exp()
        for mean, sigma in ((two[0, 0], two[1, 0]), (one[0, 0], one[1, 0]))
    )
    rest = (p - q / math.exp(0.1 - 0.4)).clamp(min=0).cumsum(0)
    cdf = (rest / rest[-1]).numpy()
    assert stats.kstest(drawn.numpy(), lambda y: np.interp(y, at.numpy(), cdf)).pvalue > 1e-4
    nothing = replace(flat[1], spreads=flat[1].spreads - 50)  # F is so small that nothing is left
    assert torch.equal(left_of(flat[0], nothing, heat, -1, noise, 3), flat[1].x)


def run(pair: tuple[MAR, MAR], options: DraftedOptions, *seeds: int, guidance: float = 2.0) -> tuple[Tensor, list[Any]]:
    """Tokens of two classes, and what was told of every pass of the large model."""
    noise, told = sources(*seeds), list[Any]()
    orders = torch.stack([torch.randperm(CELLS, generator=source) for source in noise.sources])
    how: dict[str, Any] = {"sets": SETS, "guidance": guidance, "temperature": 1.0, "denoising_steps": STEPS}
    labels = torch.tensor([2, 3])[: len(seeds)]
    made = draw_drafted(*pair, labels, orders, noise, options, drawn=lambda *each: told.append(each) is None, **how)
    return made, told


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("kept", [True, False])
def test_the_released_loop(pair: tuple[MAR, MAR], kept: bool, guidance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out, with every draft kept, and with every one refused for the large model's own token."""
    far = math.inf if kept else -math.inf
    monkeypatch.setattr(mar_drafts, "log_ratio", lambda theirs, *_: torch.full(theirs.x.shape[:2], far))
    monkeypatch.setattr(mar_drafts, "left_of", lambda theirs, own, *_: own.x)
    large, small = pair
    options = DraftedOptions(k=4, prefill=0.15)
    ours, told = run(pair, options, 7, 8, guidance=guidance)

    noise, steps = sources(7, 8), denoising(STEPS)
    orders = torch.stack([torch.randperm(CELLS, generator=source) for source in noise.sources])
    told_noise, tokens = noise.normal(CELLS, STEPS + 1, DIM), torch.zeros(2, CELLS, DIM)
    known: list[list[int]] = [[], []]  # places that the large model knows
    drafted: list[list[int]] = [[], []]
    passes = 0
    for step, (left, after) in enumerate(pairwise(large.left_behind(SETS))):
        new = [sorted(row[after:left].tolist()) for row in orders]

        def set_of(model: MAR, seen: list[list[int]], wanted: list[list[int]], after: int = after) -> Tensor:
            places = torch.tensor(wanted)
            args = torch.tensor([2, 3]), tokens, torch.tensor(seen).view(2, -1).long(), places, after, guidance
            condition, scale = model.condition(*args)
            return model.denoised(condition, steps, placed(told_noise, places), scale, 1.0).x

        def put(wanted: list[list[int]], found: Tensor) -> None:
            for row in range(2):
                tokens[row, wanted[row]] = found[row]

        if step <= SETS * 0.15:
            put(new, set_of(large, known, new))
            known, passes = [a + b for a, b in zip(known, new, strict=True)], passes + 1
            continue
        put(new, set_of(small, [a + b for a, b in zip(known, drafted, strict=True)], new))
        drafted = [a + b for a, b in zip(drafted, new, strict=True)]
        if step % 4 == 0 or step == SETS - 1:
            union = [sorted(row) for row in drafted]
            own = set_of(large, known, union)
            if not kept:
                put(union, own)
            known, drafted, passes = [a + b for a, b in zip(known, drafted, strict=True)], [[], []], passes + 1
    torch.testing.assert_close(ours, tokens, rtol=1e-4, atol=1e-5)
    assert len(told) == passes == 5 and [each is None for _, each in told] == [True, True, False, False, False]
    assert torch.equal(torch.cat([places for places, _ in told], 1).sort(1).values, torch.arange(CELLS).expand(2, -1))
    assert all(bool(each.all()) is kept and bool(each.any()) is kept for _, each in told if each is not None)


@pytest.fixture
def half_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are kept by the sign of a number of theirs: random weights are no models of one thing."""
    monkeypatch.setattr(mar_drafts, "log_ratio", lambda theirs, *_: theirs.x[..., 0].sign() * math.inf)


@pytest.mark.usefixtures("half_kept")
def test_a_row_depends_on_its_seed_alone(pair: tuple[MAR, MAR]) -> None:
    options = DraftedOptions(k=3)
    both, told = run(pair, options, 7, 8)
    torch.testing.assert_close(both[:1], run(pair, options, 7)[0], rtol=1e-4, atol=1e-5)
    kept = torch.cat([each for _, each in told if each is not None], 1)
    assert 0 < kept.float().mean() < 1


def test_a_model_that_drafts_for_itself_is_kept(pair: tuple[MAR, MAR]) -> None:
    """One set a judging pass: both contexts are one, and so are both tokens."""
    _, told = run((pair[0], pair[0]), DraftedOptions(k=1, tau="paper"), 7, 8)
    assert len(told) == SETS and all(bool(each.all()) for _, each in told if each is not None)


@pytest.fixture(scope="module")
def pipe(pair: tuple[MAR, MAR]) -> MARPipeline:
    torch.manual_seed(0)
    vae = AutoencoderKL(latent_channels=DIM, block_out_channels=(8,), norm_num_groups=4)
    made = MARPipeline(pair[0], vae.eval())
    made.set_progress_bar_config(disable=True)
    return made


@pytest.mark.usefixtures("half_kept")
def test_the_pipeline_drafts(pipe: MARPipeline, pair: tuple[MAR, MAR], tmp_path: Any) -> None:
    how: dict[str, Any] = {"num_inference_steps": SETS, "denoising_steps": STEPS, "output_type": "latent"}
    drawn = pipe.use("cspd", drafter=pair[1], k=4)([2, 3], guidance_scale=2.0, seed=[7, 8], **how)
    tokens, _ = run(pair, DraftedOptions(k=4), 7, 8)
    assert torch.equal(drawn.tokens.flatten(1, 2), tokens) and drawn.rounds.max() == drawn.report.rounds - 1 == 4
    assert (drawn.report.method, drawn.report.exactness, drawn.report.emitted) == ("cspd", "lossy", 2 * CELLS)
    assert 0 < drawn.report.accepted < drawn.report.drafted
    MARPipeline(pair[1], pipe.vae).save_pretrained(tmp_path / "small")
    pipe.use().save_pretrained(tmp_path / "large")
    loaded = mmspec.Pipeline.from_pretrained(tmp_path / "large", method="cspd", drafter=str(tmp_path / "small"), k=4)
    again = loaded([2, 3], guidance_scale=2.0, seed=[7, 8], **how)
    assert torch.equal(again.tokens, drawn.tokens)
    typed = ["--class-label", "2", "--model", str(tmp_path / "large"), "-o", str(tmp_path / "out.png"), "--steps", "12"]
    typed += ["--method", "cspd", "--opt", f"drafter={tmp_path / 'small'}", "--opt", "prefill=0.3", "-k", "2"]
    done = CliRunner().invoke(build(), ["generate", "image", *typed])
    assert done.exit_code == 0, done.output
    assert "cspd (lossy): 16 units in" in done.stderr


def test_what_cannot_be_drafted_is_refused(pipe: MARPipeline, pair: tuple[MAR, MAR]) -> None:
    for given, said in (
        ({}, "drafter=…; none was given"),
        ({"drafter": 3}, "this is a int"),
        ({"drafter": mar(2, num_classes=4)}, "classes: the smaller model has 4, the model 5"),
        ({"drafter": pair[1], "every": 2}, "cspd: no option is called 'every'"),
        ({"drafter": pair[1], "k": 0}, "option 'k' is 0"),
    ):
        with pytest.raises(ValueError, match=said):
            pipe.use("cspd", **given)
    with pytest.raises(ValueError, match="temperature above 0"):
        pipe.use("cspd", drafter=pair[1])(1, num_inference_steps=4, denoising_steps=4, temperature=0.0)
    with pytest.raises(ValueError, match="cspd, which is lossy, drafts with a smaller MAR"):
        pipe.use("plain", drafter=pair[1])
    pipe.use()
