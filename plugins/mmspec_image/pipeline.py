"""`TextToImagePipeline`: captions or classes in, pictures out, in the manner of diffusers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from diffusers import ImagePipelineOutput
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.api.pipeline import Generators, Seed
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.hosts.devices import awake
from mmspec.kits.pictures.callbacks import Callback, refuse_guidance
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.kits.pictures.parts import refuse_misfits
from mmspec.kits.pictures.pipeline import PicturePipeline
from mmspec_image.models.llamagen import LlamaGenTransformer


class Sampling(NamedTuple):
    """How a model's authors draw with it: what a call uses where it does not say."""

    guidance_scale: float
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def filled(self, **given: float | None) -> Self:
        """The same with what a call gives; None: nothing."""
        return self._replace(**{name: value for name, value in given.items() if value is not None})


@dataclass
class TextToImageOutput(ImagePipelineOutput):
    """The output of a call.

    Attributes:
        images: In the form that `output_type` names: a list of PIL pictures, numbers in [0, 1] as `[row, height,
            width, 3]` (`np`) or `[row, 3, height, width]` (`pt`), or the codes (`latent`). All pictures of a prompt
            stand together.
    """

    # Counts and times. `report.emitted` counts the codes that were drawn, fewer where a call was stopped.
    report: Report
    codes: Tensor  # `[row, grid, grid]` int64; those that a stopped call did not reach repeat the code above them
    rounds: Tensor  # `[row, grid, grid]` int64: the round that emitted each code; 0 is the prefill, -1: not reached


class TextToImagePipeline(PicturePipeline):
    """Draws pictures as codes in raster order, many codes a pass.

    A subclass for other models names its `target_module` and overrides `encode_prompt`, `decode_units`, `side` and
    `sampling`.

    Args:
        transformer: Gives the distribution of the codes.
        vq: Decodes codes to pixels.
        text_encoder: Features of captions: ours, or `T5EncoderModel` of the published text models; None for classes.
        tokenizer: The text encoder's tokenizer; None for classes.
        guidance_scale: The guidance of a call that names none.
        top_k: The `top_k` of such a call.

    Raises:
        ValueError: The parts do not fit each other; names the numbers that differ.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="gs-sjd")
        image = pipe("princess skin 4", generator=torch.Generator().manual_seed(0)).images[0]
        ```
    """

    model_cpu_offload_seq = "text_encoder->transformer->vq"
    _optional_components = ["text_encoder", "tokenizer"]  # noqa: RUF012  diffusers' own form

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vq: LlamaGenVQ,
        text_encoder: CaptionEncoder | PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        guidance_scale: float = 3.0,
        top_k: int = 0,
    ) -> None:
        super().__init__()
        model, of = transformer.config, vq.config
        scales = len(of.encoder_ch_mult) - 1, len(of.decoder_ch_mult) - 1
        refuse_misfits(
            transformer,
            text_encoder,
            tokenizer,
            ("codes: the transformer draws {}, the VQ has {}", model.vocab_size, of.codebook_size),
            ("factors: the VQ's encoder halves {} times, its decoder doubles {} times", *scales),
        )
        self.register_modules(transformer=transformer, vq=vq, text_encoder=text_encoder, tokenizer=tokenizer)
        self.register_to_config(guidance_scale=guidance_scale, top_k=top_k)
        transformer.entries = vq.quantize.entries.detach().to(transformer.device)

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
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
    ) -> TextToImageOutput | tuple[Any, Report, Tensor, Tensor]:
        """Draw pictures, one row each, in one batch.

        Args:
            prompt: A caption, or several; for models of captions.
            class_labels: A class, or several; for models of classes.
            negative_prompt: What guidance leads away from: one for all, or one a prompt; "" is the null caption.
            height: In pixels; a model has one size.
            width: In pixels.
            num_images_per_prompt: Pictures of every prompt.
            guidance_scale: Higher follows the prompt more closely; 1 is no guidance, at half the cost. The defaults of
                this and the next three are in `pipe.sampling`, which says how the model's authors draw.
            temperature: Higher is more varied; 0 is greedy.
            top_k: Draw from the `top_k` likeliest codes; lower is safer, 0 keeps all.
            top_p: Draw from the likeliest codes that have this mass together; lower is safer, 1 keeps all.
            seed: One seed, or one a picture. A picture does not depend on the method (if it is `invariant`) or on its
                batch.
            generator: A `torch.Generator`, or one a picture, instead of `seed`.
            k: Codes to draft per round; default: as set by `use`.
            prompt_embeds: Instead of `prompt`: features `[prompt, length, width]`, as `encode_prompt` gives.
            prompt_attention_mask: `[prompt, length]` bool: which of them are no padding.
            negative_prompt_embeds: Instead of `negative_prompt`, maybe of fewer positions; for classes, labels to lead
                away from.
            negative_prompt_attention_mask: The mask of `negative_prompt_embeds`.
            output_type: `pil`, `np`, `pt`, or `latent` for the codes.
            return_dict: Return the output object, or else a tuple of its fields.
            callback_on_step_end: `callback(pipe, step, timestep, tensors) -> dict`, after the prefill (step 0) and
                every round; `timestep` counts the codes of the slowest row. It may set `pipe.guidance_scale`, return
                another `negative_prompt` (a list of a text, or None, for every row) or `negative_prompt_embeds`, and
                stop the call with `pipe._interrupt = True`.
            callback_on_step_end_tensor_inputs: Tensors that the callback receives: `tokens` (`[row, cell]`, -1 where
                not drawn yet), `accepted` (drafted codes that the round kept, `[row]`), `preview` (the picture so far,
                `[row, 3, height, width]` in [-1, 1], filled in from the row above), `negative_prompt_embeds`,
                `negative_prompt_attention_mask`.
            steer_every: Codes between two calls of the callback, such as those of a row or two. All pictures then have
                as many codes, and `step` counts the calls: under an `invariant` method a steered picture depends on no
                draft. None: it is called after every round, whose number and length depend on the method.

        Raises:
            ValueError: A prompt is empty, too long or unknown, a number is out of its range, or a name is wrong.
        """
        said = {"guidance_scale": guidance_scale, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        scale, *how = self.sampling.filled(**said)
        refuse_guidance(scale)
        warp = Warp.sampling(*how, guidance=scale if scale > 1 else None)
        drawn = self.draw(
            warp,
            prompt=prompt,
            class_labels=class_labels,
            negative_prompt=negative_prompt,
            prompt_embeds=prompt_embeds,
            prompt_attention_mask=prompt_attention_mask,
            negative_prompt_embeds=negative_prompt_embeds,
            negative_prompt_attention_mask=negative_prompt_attention_mask,
            guidance_scale=scale,
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
        return TextToImageOutput(*drawn) if return_dict else tuple(drawn)

    @property
    def sampling(self) -> Sampling:
        """How a call draws where it does not say."""
        return Sampling(self.config.guidance_scale, top_k=self.config.top_k)

    def decode_units(self, units: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of codes `[row, cell]` in raster order."""
        grid = round(units.shape[1] ** 0.5)
        with awake(self.vq, self.vq.quantize.embedding):  # the codebook is read, not called
            return self.vq.decode(units.unflatten(1, (grid, grid))).float().clamp(-1, 1)

    @property
    def side(self) -> int:
        """Height and width of a picture, in pixels."""
        return self.transformer.config.grid * self.vq.factor
