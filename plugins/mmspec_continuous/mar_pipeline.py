"""`MARPipeline`: classes in, pictures out, by way of MAR's sets of continuous tokens; a smaller MAR may draft them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import AutoencoderKL, DiffusionPipeline, ImagePipelineOutput
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.api.pipeline import Generators, Pipeline, Seed, refuse_unread, seeds_for
from mmspec.core.report import Report
from mmspec.hosts.loading import load_part
from mmspec.kits.pictures.arguments import in_range, labels_of
from mmspec.kits.pictures.callbacks import refuse_guidance
from mmspec.kits.pictures.pipeline import OUTPUTS
from mmspec.registry.numbers import numbers, required, whole
from mmspec.registry.options import build
from mmspec_continuous.models.mar import MAR
from mmspec_continuous.models.mar_drafts import DraftedOptions, RowNoise, draw_drafted

SAME = {"token_dim": "numbers of a token", "grid": "tokens a side", "num_classes": "classes", "levels": "noise levels"}
"""Settings that a model and the one that drafts for it share, with the words for messages."""


@dataclass
class MAROutput(ImagePipelineOutput):
    """The output of a call."""

    report: Report  # counts and times; units are tokens
    tokens: Tensor  # `[row, grid, grid, token_dim]` float32
    # `[row, grid, grid]` int64: the model's pass that drew or judged each token, from 0 on; -1: the call was stopped
    rounds: Tensor


class MARPipeline(Pipeline):
    """Draws pictures of ImageNet's classes with a MAR.

    Plain, or drafted by a smaller MAR of the same tokens (`cspd`), which is lossy: no exact method can draft here, as
    `mmspec_continuous.models.mar` says. Fewer `num_inference_steps` are fewer passes, and another distribution, too.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mar-huge", device="cuda")
        image = pipe(207, guidance_scale=3.2, seed=0).images[0]
        ```
    """

    target_module = "transformer"
    makes = "image"
    model_cpu_offload_seq = "transformer->vae"
    why, _interrupt = "", False
    _drafted: tuple[MAR, DraftedOptions] | None = None

    @property
    def interrupt(self) -> bool:
        """True if the running call is to stop: `pipe._interrupt = True` stops it behind a set."""
        return self._interrupt

    def __init__(self, transformer: MAR, vae: AutoencoderKL) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, vae=vae)
        self.fit()

    def fit(self) -> None:
        tokens, latents = self.transformer.config.token_dim, self.vae.config.latent_channels
        if tokens != latents:
            raise ValueError(
                f"these parts do not fit each other: tokens have {tokens} numbers, and the autoencoder's {latents}"
            )

    def use(self, method: str = "auto", *, drafter: Any = None, **options: Any) -> Self:
        """Draw plainly, or with drafts of a smaller MAR.

        Args:
            method: `plain`, which `auto` is, or `cspd`.
            drafter: For `cspd`: the smaller MAR, live, or the folder of its pipeline.
            **options: For `cspd`: `k`, `prefill`, `tau`, `factor`, `tries` of `models.mar_drafts.DraftedOptions`.

        Raises:
            ValueError: There is no such method here, or an option is wrong, or the smaller model has other tokens.
        """
        given = {name: value for name, value in options.items() if value is not None}
        if method not in ("auto", "plain", "cspd") or (method != "cspd" and (given or drafter is not None)):
            what = method if method not in ("auto", "plain") else ", ".join(given or ["drafter"])
            raise ValueError(
                f"a MAR draws sets of tokens in random order, each in one pass, and exact drafts save none: {what!r} "
                "has no use here; cspd, which is lossy, drafts with a smaller MAR (drafter=…), and fewer "
                "num_inference_steps are fewer passes"
            )
        self._drafted = None if method != "cspd" else (self._smaller(drafter), build(DraftedOptions, given, "cspd"))
        return self

    def _smaller(self, drafter: Any) -> MAR:
        if isinstance(drafter, str | Path):
            drafter = load_part(MAR, Path(drafter) / "transformer", self.transformer.dtype)
        if not isinstance(drafter, MAR):
            problem = "none was given" if drafter is None else f"this is a {type(drafter).__name__}"
            raise ValueError(f"cspd drafts with a smaller MAR, drafter=…; {problem}")
        for name, what in SAME.items():
            own, other = drafter.config[name], self.transformer.config[name]
            if own != other:
                raise ValueError(f"{what}: the smaller model has {own}, the model {other}")
        return drafter

    def save_pretrained(self, save_directory: str | Path, **how: Any) -> None:
        """Write the pipeline as diffusers does; `mmspec.Pipeline.from_pretrained` reads it."""
        refuse_unread(how)
        DiffusionPipeline.save_pretrained(self, save_directory, **how)

    @torch.no_grad()
    def __call__(
        self,
        class_labels: int | Sequence[int] | Tensor = (),
        *,
        num_images_per_prompt: int = 1,
        num_inference_steps: int = 64,
        guidance_scale: float = 1.0,
        temperature: float = 1.0,
        denoising_steps: int = 100,
        seed: Seed = None,
        generator: Generators = None,
        output_type: str = "pil",
        return_dict: bool = True,
    ) -> Any:
        """Draw a picture of each class.

        Args:
            class_labels: A class, or several.
            num_images_per_prompt: Pictures of every class.
            num_inference_steps: Sets of tokens, and passes of the transformer; the authors measure with 256.
            guidance_scale: Higher shows the class more clearly; the authors use 2.9 (base), 3.0 (large), 3.2 (huge).
            temperature: Of the denoising head's noise; the authors use 0.95 without guidance.
            denoising_steps: Of every token.
            seed: One seed, or one a picture. A picture does not depend on its batch.
            generator: A `torch.Generator`, or one a picture, instead of `seed`.
            output_type: `pil`, `np`, `pt`, or `latent` for the tokens.
            return_dict: Return the output object, or else a tuple of its fields.

        Raises:
            ValueError: A class, a number or a name is wrong.
        """
        self.fit()
        model, of = self.transformer, self.transformer.config
        labels = in_range(labels_of(class_labels), of.num_classes)
        if whole("num_images_per_prompt", num_images_per_prompt) < 1:
            raise ValueError("num_images_per_prompt must be at least 1, got 0")
        labels = labels.repeat_interleave(num_images_per_prompt)
        if not 1 <= whole("num_inference_steps", num_inference_steps) <= model.cells:
            raise ValueError(f"num_inference_steps are 1 to {model.cells}, one token a step, not {num_inference_steps}")
        whole("denoising_steps", denoising_steps)
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type is one of {', '.join(OUTPUTS)}, not {output_type!r}")
        refuse_guidance(guidance_scale)
        required(temperature=temperature)
        numbers(temperature=temperature)
        if not 0 <= temperature < inf:
            raise ValueError(f"temperature must be a finite number >= 0, got {temperature}")
        if self._drafted is not None and not temperature:
            raise ValueError("cspd tests drafts by the noise of their last step: temperature above 0")
        seeds = seeds_for(len(labels), seed, generator, "picture")
        each = [seeds + row for row in range(len(labels))] if isinstance(seeds, int) else seeds
        device, self._interrupt = self._execution_device, False
        noise = RowNoise([torch.Generator().manual_seed(number) for number in each], device)
        orders = torch.stack([torch.randperm(model.cells, generator=source) for source in noise.sources]).to(device)
        rounds, report = torch.full(orders.shape, -1, device=device), Report(rows=len(labels))
        how: dict[str, Any] = {"sets": num_inference_steps, "guidance": guidance_scale, "temperature": temperature}
        how["denoising_steps"] = denoising_steps
        with self.progress_bar(total=model.cells) as bar, report.phase("verify"):

            def drawn(places: Tensor, kept: Tensor | None = None) -> bool:
                rounds.scatter_(1, places, report.rounds)
                report.rounds, report.row_rounds = report.rounds + 1, report.row_rounds + len(labels)
                report.emitted += places.numel()
                if kept is not None:
                    report.add_read(kept.numel(), [int(kept.sum())])
                bar.update(places.shape[1])
                return not self._interrupt

            if self._drafted is None:
                tokens = model.draw(
                    labels.to(device), orders, lambda n: noise.normal(n, of.token_dim), drawn=drawn, **how
                )
            else:
                small, options = self._drafted
                report.method, report.exactness, report.k = "cspd", "lossy", options.k
                small = small.to(device)
                tokens = draw_drafted(model, small, labels.to(device), orders, noise, options, drawn=drawn, **how)
        images = None
        if output_type != "latent":
            images = VaeImageProcessor().postprocess(
                torch.cat([self.decode(row) for row in tokens.split(1)]), output_type
            )
        self.maybe_free_model_hooks()
        tokens, rounds = (each.unflatten(1, (of.grid, of.grid)) for each in (tokens, rounds))
        found = tokens if images is None else images, report, tokens, rounds
        return MAROutput(*found) if return_dict else found

    def decode(self, tokens: Tensor) -> Tensor:
        """Pictures `[row, 3, side, side]` in [-1, 1] of tokens `[row, cell, token_dim]` in raster order."""
        grid = self.transformer.config.grid
        latents = tokens.transpose(1, 2).unflatten(2, (grid, grid)) / self.vae.config.scaling_factor
        return self.vae.decode(latents.to(self.vae.dtype)).sample.float().clamp(-1, 1)
