"""`MARPipeline`: classes in, pictures out, by way of MAR's sets of continuous tokens. It drafts nothing."""

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
from mmspec.kits.pictures.arguments import in_range, labels_of
from mmspec.kits.pictures.callbacks import refuse_guidance
from mmspec.kits.pictures.pipeline import OUTPUTS
from mmspec.registry.numbers import numbers, required, whole
from mmspec_continuous.models.mar import MAR


@dataclass
class MAROutput(ImagePipelineOutput):
    """The output of a call."""

    report: Report  # counts and times; units are tokens
    tokens: Tensor  # `[row, grid, grid, token_dim]` float32
    rounds: Tensor  # `[row, grid, grid]` int64: the pass that drew each token, from 0 on; -1: the call was stopped


class MARPipeline(Pipeline):
    """Draws pictures of ImageNet's classes with a MAR.

    There is no method to choose: `mmspec_continuous.models.mar` says why drafts save nothing. Fewer
    `num_inference_steps` are fewer passes, and another distribution.

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

    def use(self, method: str = "auto", **options: Any) -> Self:
        """Nothing but plain decoding can be chosen.

        Raises:
            ValueError: Another method, or an option, was given.
        """
        given = [name for name, value in options.items() if value is not None]
        if method not in ("auto", "plain") or given:
            what = method if method not in ("auto", "plain") else ", ".join(given)
            raise ValueError(
                f"a MAR draws sets of tokens in random order, each in one pass, and drafts save none: {what!r} has no "
                "use here; fewer num_inference_steps are fewer passes"
            )
        return self

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
        seeds = seeds_for(len(labels), seed, generator, "picture")
        each = [seeds + row for row in range(len(labels))] if isinstance(seeds, int) else seeds
        sources = [torch.Generator().manual_seed(number) for number in each]
        device, self._interrupt = self._execution_device, False

        def normal(count: int) -> Tensor:
            return torch.stack([torch.randn(count, of.token_dim, generator=source) for source in sources]).to(device)

        orders = torch.stack([torch.randperm(model.cells, generator=source) for source in sources]).to(device)
        rounds, report = torch.full(orders.shape, -1, device=device), Report(rows=len(labels))
        with self.progress_bar(total=num_inference_steps) as bar, report.phase("verify"):

            def drawn(places: Tensor) -> bool:
                rounds.scatter_(1, places, report.rounds)
                report.rounds, report.row_rounds = report.rounds + 1, report.row_rounds + len(labels)
                report.emitted += places.numel()
                bar.update()
                return not self._interrupt

            tokens = model.draw(
                labels.to(device),
                orders,
                normal,
                sets=num_inference_steps,
                guidance=guidance_scale,
                temperature=temperature,
                denoising_steps=denoising_steps,
                drawn=drawn,
            )
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
