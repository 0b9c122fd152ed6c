"""`python -m tools.bench denoising`: serial network calls of a diffusers pipeline, plain and speculative.

The pipeline is one that `python -m tools.train flow` trained (`--model`), or a DDPM that is built from a configuration
and has random weights. How many calls are saved depends on how smooth the network is, so that random weights say
nothing about a trained network; the tests show that the distribution is the same. Of a trained one the samples of every
draft length are compared with plain ones: the p-value of Kolmogorov and Smirnov, of the worst of some projections.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from scipy.stats import ks_2samp

import mmspec
from mmspec.bench.command import Quick
from mmspec.bench.race import Plan, Run, Track, planned, relay
from mmspec.bench.rows import row_of
from mmspec.bench.timing import describe, synchronize, versions
from mmspec.core.report import Report
from mmspec.report.result import PLAIN, Row
from tools.bench.pictures import command as kit
from tools.report.whole import Limits, WholeResult
from tools.train.pictures.flow import load_flow

METHOD = "speculative-denoising"
DRAFTS = (2, 4, 8)
"""Steps that are drafted per network call."""
QUICK = 2
UNET: dict[str, Any] = {
    "sample_size": 32,
    "layers_per_block": 2,
    "block_out_channels": (32, 64, 64),
    "down_block_types": ("DownBlock2D",) * 3,
    "up_block_types": ("UpBlock2D",) * 3,
    "norm_num_groups": 8,
    "add_attention": False,
}
NOTES = {
    "calls": "network calls a sample, one after another",
    "call_compression": "calls of plain denoising / own calls",
    "acceptance_rate": "share of the drafted steps that were kept",
    "p_value": "that these samples and plain ones are of one distribution, by the worst of some projections; of exact "
    "sampling it is uniform",
}
PROJECTIONS = 16
"""Directions in which samples are compared."""


RANDOM = (
    "Weights are random, so that the calls saved are those of no trained network. Samples of "
    f"{UNET['sample_size']} × {UNET['sample_size']} pixels, one at a time, unguided."
)
FLOW = (
    "`python -m tools.train flow`: a transformer of Stable Diffusion 3's kind over the latents of emoji-continuous, "
    "which draws in diffusers' own pipeline with `FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)`. Held-out "
    "captions, one picture at a time, unguided."
)


@dataclass(frozen=True)
class DenoisingOptions:
    """How long the benchmark takes."""

    samples: int = 4  # samples of a repeat, one at a time
    repeats: int = 4  # counted repeats, each of seeds of its own
    steps: int = 50  # denoising steps
    seed: int = 0  # seed of the first sample; the others count up
    whole: bool = True  # whether this is the whole benchmark, not the quick one

    @property
    def quick(self) -> "DenoisingOptions":
        """Fewer samples."""
        samples, repeats = min(self.samples, QUICK), min(self.repeats, QUICK)
        return replace(self, samples=samples, repeats=repeats, whole=False)

    @property
    def calls(self) -> int:
        """How often every contestant samples."""
        return 1 + self.samples * self.repeats


@dataclass(frozen=True)
class Sampler:
    """Samples with a pipeline, plainly or speculatively."""

    pipe: Any
    steps: int  # denoising steps
    k: int = 0  # steps to draft per network call; 0: none, the pipeline is diffusers' own
    # Features of captions, by the names of the call's arguments, which take turns by the seed; none: no prompts
    prompts: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def network(self) -> torch.nn.Module:
        found: torch.nn.Module = self.pipe.transformer if self.prompts else self.pipe.unet
        return found

    def __call__(self, seed: int) -> Run:
        if not self.k:
            network = CallCounter(self.network)
            seconds, sample = self._sampled(seed)
            return Run(seconds, [sample], _filled(network.close(), seconds))
        with mmspec.enable(self.pipe, METHOD, k=self.k) as spec:
            seconds, sample = self._sampled(seed)
            return Run(seconds, [sample], _filled(spec.report, seconds))

    def _sampled(self, seed: int) -> tuple[float, torch.Tensor]:
        device = str(self.pipe.device)
        generator = torch.Generator(device).manual_seed(seed)
        of_prompt = {name: rows[seed % len(rows)][None].to(device) for name, rows in self.prompts.items()}
        how = {"output_type": "latent", "guidance_scale": 1.0} if of_prompt else {"output_type": "np"}
        synchronize(device)
        began = time.perf_counter()
        output = self.pipe(generator=generator, num_inference_steps=self.steps, **of_prompt, **how)
        synchronize(device)
        return time.perf_counter() - began, torch.as_tensor(output.images)


class CallCounter:
    """Counts and times a network's calls, until it is closed.

    Args:
        network: A network that a pipeline calls.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        self._report = Report(PLAIN, rows=1)
        self._hooks = [network.register_forward_pre_hook(self._begin), network.register_forward_hook(self._end)]

    def close(self) -> Report:
        """Stop counting; the report has one step per call, of which the first is the prefill."""
        for hook in self._hooks:
            hook.remove()
        report = self._report
        report.rounds = report.row_rounds = report.emitted - 1
        report.sizes[1] = report.rounds
        return report

    def _begin(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        phase = "verify" if self._report.emitted else "prefill"
        self._report.seconds[phase] += time.perf_counter() - self._began
        self._report.emitted += 1


def bench_denoising(
    options: DenoisingOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    model: Path | None = None,
) -> WholeResult:
    """Build or load a pipeline and run.

    Args:
        options: How much.
        device: Where.
        progress: Given what is ahead, returns what is called after each call.
        model: Folder of a pipeline with features of captions; None: a DDPM of random weights.
    """
    torch.manual_seed(options.seed)
    pipe: Any
    prompts: dict[str, torch.Tensor]
    if model is None:
        pipe, prompts = DDPMPipeline(UNet2DModel(**UNET).eval(), DDPMScheduler()), {}
    else:
        pipe, prompts = load_flow(model)
    pipe.to(device).set_progress_bar_config(disable=True)
    samplers = {PLAIN: Sampler(pipe, options.steps, prompts=prompts)}
    samplers |= {f"{METHOD}, {k} steps drafted": Sampler(pipe, options.steps, k, prompts) for k in DRAFTS}
    first, size = options.seed, options.samples
    legs = [range(first + size * i, first + size * (i + 1)) for i in range(options.repeats)]
    calls, many = len(samplers) * options.calls, len(samplers)
    quick = many * options.quick.calls if options.whole else None
    tick = progress(planned(calls, calls, quick, partial(samplers[PLAIN], first)))
    tracks = relay(samplers, legs, legs[0][:1], tick=tick)
    row = partial(_row, tracks, f"{'flow' if prompts else 'DDPM'}, {options.steps} steps")
    return WholeResult(
        kind="denoising",
        model="a small flow-matching transformer over the emoji's latents" if prompts else "a UNet of random weights",
        device=describe(device),
        versions=versions(),
        seed=options.seed,
        prompts={"samples": size * options.repeats},
        rows=[row(name, sampler.k) for name, sampler in samplers.items()],
        peers={},
        limits=Limits(),
        unit="step",
        piece="sample",
        how=FLOW if prompts else RANDOM,
        notes=dict(NOTES),
    )


def _row(tracks: dict[str, Track], setting: str, name: str, k: int) -> Row:
    track = tracks[name]
    calls = {way: statistics.mean(report.rounds + 1 for report in _reports(t.every)) for way, t in tracks.items()}
    drafted = sum(report.drafted for report in _reports(track.every))
    quality = {"calls": calls[name], "call_compression": round(calls[PLAIN] / calls[name], 4)}
    if drafted:
        quality["acceptance_rate"] = round(sum(report.accepted for report in _reports(track.every)) / drafted, 4)
    if drafted and setting.startswith("flow"):
        quality["p_value"] = round(_p_value(tracks[PLAIN].every, track.every), 4)
    options = {"k": k} if k else {}
    row = row_of(track, tracks[PLAIN], method=name, setting=setting, every=True, options=options, quality=quality)
    # The distribution is promised, not the path; and units are denoising steps, of which a run returns the last one's
    # sample.
    kept = {name: value for name, value in row.quality.items() if name != "same_as_plain"}
    return replace(row, quality=kept, units=sum(report.emitted for report in _reports(track.median)))


def _p_value(plain: Sequence[Run], ours: Sequence[Run]) -> float:
    """That two sets of samples are of one distribution: of the worst of some projections, times their number."""
    first, second = (torch.stack([run.units[0].flatten().double() for run in runs]) for runs in (plain, ours))
    directions = torch.randn(first.shape[1], PROJECTIONS, generator=torch.Generator().manual_seed(0)).double()
    worst = min(float(ks_2samp(first @ each, second @ each).pvalue) for each in directions.unbind(1))
    return min(1.0, PROJECTIONS * worst)


def _reports(runs: Sequence[Run]) -> list[Report]:
    return [run.report for run in runs if run.report is not None]


def _filled(report: Report, seconds: float) -> Report:
    """The report with the remaining seconds, which are neither the network's nor the drafter's, as `rest`."""
    report.seconds["rest"] = seconds - sum(report.seconds.values())
    return report


def denoising(
    json: kit.Json = None,
    plot: kit.Plot = None,
    device: kit.Device = "cpu",
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Counted repeats, each of seeds of its own.")] = 4,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Samples of a repeat, one at a time.")] = 4,
    steps: Annotated[int, typer.Option(min=2, max=1000, help="Denoising steps.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the first sample; the others count up.")] = 0,
    model: Annotated[
        Path | None, typer.Option(help="A pipeline of `tools.train flow`; else random weights.", file_okay=False)
    ] = None,
    quick: Quick = False,
) -> None:
    """Count the serial network calls of speculative denoising in a diffusers pipeline."""
    kit.refuse(2, json, plot)
    options = DenoisingOptions(samples=samples, repeats=repeats, steps=steps, seed=seed)
    options = options.quick if quick else options
    kit.bench("denoising", lambda progress: bench_denoising(options, device, progress, model), json, plot)
