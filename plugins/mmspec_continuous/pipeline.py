"""`ContinuousTextToImagePipeline`: captions in, pictures out, by way of continuous tokens.

Tokens are an autoencoder's latents in raster order, standardised channel by channel (`latents_mean` and `latents_std`
of its configuration).
"""

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKL, ImagePipelineOutput
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.hosts.devices import awake
from mmspec.kits.pictures.arguments import Sampling
from mmspec.kits.pictures.conditions import refuse_misfits
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.pipeline import PicturePipeline
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.targets.continuous import Guided

GUIDANCE = 3.0  # default scale of models that can be guided


@dataclass
class ContinuousTextToImageOutput(ImagePipelineOutput):
    """The output of a call: `images` as `output_type` names them; all pictures of a prompt stand together."""

    # Counts and times. `report.emitted` counts the tokens that were drawn, fewer where a call was stopped.
    report: Report
    # `[row, grid, grid, token_dim]` float32; where a stopped call did not reach, the token above is repeated
    tokens: Tensor
    rounds: Tensor  # `[row, grid, grid]` int64: the round that emitted each token; 0 is the prefill, -1: not reached


class ContinuousTextToImagePipeline(PicturePipeline):
    """Draws pictures as continuous tokens in raster order, many tokens a pass.

    The distribution of a picture does not depend on the method; which picture a seed gives does.

    Args:
        transformer: Gives the distribution of the tokens.
        vae: Decodes tokens to pixels.
        text_encoder: Features of captions; None where features are given.
        tokenizer: The text encoder's tokenizer; None where features are given.

    Raises:
        ValueError: The parts do not fit each other; names what differs.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji-continuous", method="reflection")
        image = pipe("princess skin 4", generator=torch.Generator().manual_seed(0)).images[0]
        ```
    """

    model_cpu_offload_seq = "text_encoder->transformer->vae"
    _optional_components = ["text_encoder", "tokenizer"]  # noqa: RUF012  diffusers' own form
    output = ContinuousTextToImageOutput

    def __init__(
        self,
        transformer: CausalContinuousAR,
        vae: AutoencoderKL,
        text_encoder: CaptionEncoder | PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, vae=vae, text_encoder=text_encoder, tokenizer=tokenizer)
        self.fit()

    def fit(self) -> None:
        model, own = self.transformer.config, mark(self.vae)
        numbers = "tokens: the transformer's have {} numbers, the autoencoder's {}"
        refuse_misfits(self, (numbers, model.token_dim, int(self.vae.config.latent_channels)))
        if model.latents is not None and tuple(model.latents) != own:
            raise ValueError(
                "these parts do not fit each other: the transformer was trained on the latents of another autoencoder "
                f"(whose scales are {list(model.latents)[:2]} …, not {list(own or ())[:2]} …)"
            )

    @property
    def sampling(self) -> Sampling:
        model = self.transformer.config
        return Sampling(GUIDANCE if model.head == "diffusion" and model.null_caption else 1.0)

    def warp_of(self, sampling: Sampling) -> None:
        """None: guidance is part of the tokens' distribution.

        Raises:
            ValueError: A temperature, `top_k` or `top_p` was given.
        """
        scale, *how = sampling
        if how != [*Sampling(scale)][1:]:
            raise ValueError("temperature=, top_k= and top_p= are of codes, and this model draws continuous tokens")

    def encode_prompt(self, *args: Any, **how: Any) -> Guided:
        return Guided.of(super().encode_prompt(*args, **how), self.guidance_scale)

    def guidance_of(self, state: State) -> float | None:
        return state.cache.scale

    def guide(self, state: State, scale: float) -> None:
        state.cache.scale = scale

    def decode_units(self, units: Tensor) -> Tensor:
        with awake(self.vae):
            return pictures_of(self.vae, units)

    @property
    def side(self) -> int:
        return self.transformer.config.grid * 2 ** (len(self.vae.config.block_out_channels) - 1)


def mark(vae: AutoencoderKL) -> tuple[float, ...] | None:
    """The scales of this autoencoder's latents, which tell it from any other training; None: not measured."""
    std = vae.config.latents_std
    return None if std is None else tuple(std)


def pictures_of(vae: AutoencoderKL, tokens: Tensor) -> Tensor:
    """Pictures `[batch, 3, side, side]` in [-1, 1] of tokens `[batch, cell, dim]`."""
    mean, std = scales_of(vae, tokens)
    grid = round(tokens.shape[1] ** 0.5)
    latents = (tokens * std + mean).transpose(1, 2).unflatten(2, (grid, grid))
    return vae.decode(latents.to(vae.dtype)).sample.float().clamp(-1, 1)


def scales_of(vae: AutoencoderKL, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel of an autoencoder's latents: of tokens' scale 1."""
    scales = vae.config.latents_mean, vae.config.latents_std
    if None in scales:
        raise ValueError("this autoencoder's latents were not measured: it has no latents_mean and latents_std")
    mean, std = (torch.tensor(values, dtype=like.dtype, device=like.device) for values in scales)
    return mean, std
