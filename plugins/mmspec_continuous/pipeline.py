"""`ContinuousTextToImagePipeline`: captions in, pictures out, by way of continuous tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diffusers import AutoencoderKL, ImagePipelineOutput
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.api.pipeline import Generators, Seed
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.hosts.devices import awake
from mmspec.kits.pictures.callbacks import Callback
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.parts import refuse_misfits
from mmspec.kits.pictures.pipeline import PicturePipeline
from mmspec_continuous.conditions import Guided
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.models.kl import mark, pictures_of

GUIDANCE = 3.0
"""Default scale of models that can be guided."""


@dataclass
class ContinuousTextToImageOutput(ImagePipelineOutput):
    """The output of a call.

    Attributes:
        images: In the form that `output_type` names: a list of PIL pictures, numbers in [0, 1] as `[row, height,
            width, 3]` (`np`) or `[row, 3, height, width]` (`pt`), or the tokens (`latent`). All pictures of a prompt
            stand together.
    """

    # Counts and times. `report.emitted` counts the tokens that were drawn, fewer where a call was stopped.
    report: Report
    # `[row, grid, grid, token_dim]` float32; those that a stopped call did not reach repeat the token above them
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

    def __init__(
        self,
        transformer: CausalContinuousAR,
        vae: AutoencoderKL,
        text_encoder: CaptionEncoder | PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        super().__init__()
        model = transformer.config
        refuse_misfits(
            transformer,
            text_encoder,
            tokenizer,
            ("tokens: the transformer's have {} numbers, the autoencoder's {}", model.token_dim, _channels(vae)),
        )
        own = mark(vae)
        if model.latents is not None and tuple(model.latents) != own:
            raise ValueError(
                "these parts do not fit each other: the transformer was trained on the latents of another autoencoder "
                f"(whose scales are {list(model.latents)[:2]} …, not {list(own or ())[:2]} …)"
            )
        self.register_modules(transformer=transformer, vae=vae, text_encoder=text_encoder, tokenizer=tokenizer)

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        guidance_scale: float | None = None,
        seed: Seed = None,
        generator: Generators = None,
        k: int | None = None,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        steer_every: int | None = None,
    ) -> ContinuousTextToImageOutput | tuple[Any, Report, Tensor, Tensor]:
        """Draw pictures, one row each, in one batch.

        Args:
            prompt: A caption, or several.
            negative_prompt: What guidance leads away from: one for all, or one a prompt; "" is the null caption.
            height: In pixels; a model has one size.
            width: In pixels.
            num_images_per_prompt: Pictures of every prompt.
            guidance_scale: Higher follows the prompt more closely; 1 is no guidance, at half the cost. Default: 3, or 1
                of models that cannot be guided (mixtures; without a null caption).
            seed: One seed, or one a picture. For a method, a picture does not depend on its batch.
            generator: A `torch.Generator`, or one a picture, instead of `seed`.
            k: Tokens to draft per round; default: as set by `use`.
            prompt_embeds: Instead of `prompt`: features `[prompt, length, width]`, as `encode_prompt` gives.
            prompt_attention_mask: `[prompt, length]` bool: which of them are no padding.
            negative_prompt_embeds: Instead of `negative_prompt`.
            negative_prompt_attention_mask: The mask of `negative_prompt_embeds`.
            output_type: `pil`, `np`, `pt`, or `latent` for the tokens.
            return_dict: Return the output object, or else a tuple of its fields.
            callback_on_step_end: `callback(pipe, step, timestep, tensors) -> dict`, after the prefill (step 0) and
                every round; `timestep` counts the tokens of the slowest row. It may set `pipe.guidance_scale`, return
                another `negative_prompt` (a list of a text, or None, for every row) or `negative_prompt_embeds`, and
                stop the call with `pipe._interrupt = True`.
            callback_on_step_end_tensor_inputs: Tensors that the callback receives: `tokens` (`[row, cell, token_dim]`,
                NaN where not drawn yet), `accepted` (drafted tokens that the round kept, `[row]`), `preview` (the
                picture so far, `[row, 3, height, width]` in [-1, 1]), `negative_prompt_embeds`,
                `negative_prompt_attention_mask`.
            steer_every: Tokens between two calls of the callback, in which all pictures have as many, so that what it
                sees does not depend on rounds; None: it is called after every round.

        Raises:
            ValueError: A prompt is empty, too long or unknown, a number is out of its range, or a name is wrong.
        """
        if guidance_scale is None:
            model = self.transformer.config
            guidance_scale = GUIDANCE if model.head == "diffusion" and model.null_caption else 1.0
        drawn = self.draw(
            prompt=prompt,
            negative_prompt=negative_prompt,
            prompt_embeds=prompt_embeds,
            prompt_attention_mask=prompt_attention_mask,
            negative_prompt_embeds=negative_prompt_embeds,
            negative_prompt_attention_mask=negative_prompt_attention_mask,
            guidance_scale=guidance_scale,
            num_images_per_prompt=num_images_per_prompt,
            height=height,
            width=width,
            seed=seed,
            generator=generator,
            k=k,
            output_type=output_type,
            callback_on_step_end=callback_on_step_end,
            callback_on_step_end_tensor_inputs=callback_on_step_end_tensor_inputs,
            steer_every=steer_every,
        )
        return ContinuousTextToImageOutput(*drawn) if return_dict else tuple(drawn)

    def encode_prompt(self, *args: Any, **how: Any) -> Guided:
        """The target's condition, as in `PicturePipeline.encode_prompt`, with the scale of the call."""
        return Guided.of(super().encode_prompt(*args, **how), self.guidance_scale)

    def guidance_of(self, state: State) -> float | None:
        """The scale of a call; guidance is part of the distribution, and the target's cache has it."""
        return state.cache.scale

    def guide(self, state: State, scale: float) -> None:
        """Use another scale from the next round on."""
        state.cache.scale = scale

    def decode_units(self, units: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of tokens `[row, cell, token_dim]` in raster order."""
        with awake(self.vae):
            return pictures_of(self.vae, units)

    @property
    def side(self) -> int:
        """Height and width of a picture, in pixels."""
        return self.transformer.config.grid * 2 ** (len(self.vae.config.block_out_channels) - 1)


def _channels(vae: AutoencoderKL) -> int:
    channels: int = vae.config.latent_channels
    return channels
