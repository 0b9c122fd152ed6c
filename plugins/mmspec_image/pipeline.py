"""`TextToImagePipeline`: captions or classes in, pictures out, in the manner of diffusers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import ImagePipelineOutput
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.core.warp import Warp
from mmspec.faces.pipeline import Generators, Pipeline, Seed, seeds_for
from mmspec.hosts.offload import awake
from mmspec.report.report import Report
from mmspec_image import conditions
from mmspec_image.callbacks import TENSORS, Callback, StepEnd, refuse_guidance, refuse_unknown
from mmspec_image.models.captions import CaptionEncoder
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.models.vq import LlamaGenVQ
from mmspec_image.rounds import Rounds, completed
from mmspec_image.targets.llamagen import Condition

OUTPUTS = ("pil", "np", "pt", "latent")


@dataclass
class TextToImageOutput(ImagePipelineOutput):
    """What a call drew.

    Attributes:
        images: As `output_type` says: a list of PIL pictures, numbers in [0, 1] as `[row, height, width, 3]` (`np`) or
            `[row, 3, height, width]` (`pt`), or the codes (`latent`). All pictures of a prompt stand together.
        report: Counts and times. `report.emitted` counts the codes that were drawn, fewer where a call was stopped.
        codes: `[row, grid, grid]` int64; those that a stopped call did not reach repeat what stands above them.
        rounds: `[row, grid, grid]` int64: the round that emitted each code; 0 is the prefill, -1: not reached.
    """

    report: Report
    codes: Tensor
    rounds: Tensor


class TextToImagePipeline(Pipeline):
    """Draws pictures as codes in raster order, many codes a pass.

    A subclass for other models names its `target_module`, and overrides `encode_prompt` and `decode_codes`.

    Args:
        transformer: Law of the codes.
        vq: Codes to pixels.
        text_encoder: Features of captions: ours, or `T5EncoderModel` of the published text models; None for classes.
        tokenizer: Of captions; None for classes.

    Raises:
        ValueError: The parts do not fit each other; both numbers are named.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="gs-sjd")
        image = pipe("red heart", guidance_scale=3.0, generator=torch.Generator().manual_seed(0)).images[0]
        ```
    """

    target_module = "transformer"
    model_cpu_offload_seq = "text_encoder->transformer->vq"
    _optional_components = ["text_encoder", "tokenizer"]  # noqa: RUF012  diffusers' own form
    _callback_tensor_inputs = list(TENSORS)  # noqa: RUF012
    _guidance_scale = 1.0
    _interrupt = False

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vq: LlamaGenVQ,
        text_encoder: CaptionEncoder | PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        super().__init__()
        conditions.refuse_misfits(transformer, vq, text_encoder, tokenizer)
        self.register_modules(transformer=transformer, vq=vq, text_encoder=text_encoder, tokenizer=tokenizer)
        transformer.entries = vq.quantize.entries.detach().to(transformer.device)

    @property
    def guidance_scale(self) -> float:
        """Of the call at hand; a callback may set it, and later rounds use it."""
        return self._guidance_scale

    @guidance_scale.setter
    def guidance_scale(self, scale: float) -> None:
        self._guidance_scale = scale

    @property
    def interrupt(self) -> bool:
        """Whether the call at hand is to stop; a callback says so with `pipe._interrupt = True`."""
        return self._interrupt

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        guidance_scale: float = 3.0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
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
    ) -> TextToImageOutput | tuple[Any, Report, Tensor, Tensor]:
        """Draw pictures, one row each, in one batch.

        Args:
            prompt: A caption, or several; of models for captions.
            class_labels: A class, or several; of models for classes.
            negative_prompt: What to lead away from: one for all, or one a prompt; "" is no caption.
            height: In pixels; a model has one size.
            width: In pixels.
            num_images_per_prompt: Pictures of every prompt.
            guidance_scale: Higher follows the prompt more closely; 1 is no guidance, at half the cost.
            temperature: Higher is more varied; 0 is greedy.
            top_k: Draw from the `top_k` likeliest codes; lower is safer, 0 keeps all.
            top_p: Draw from the likeliest codes that have this mass together; lower is safer, 1 keeps all.
            seed: One, or one a picture. A picture does not depend on the method (if it is `invariant`) or on its batch.
            generator: Instead of `seed`: a `torch.Generator`, or one a picture.
            k: Codes to draft per round; default: what `use` was told.
            prompt_embeds: Instead of `prompt`: features `[prompt, length, width]`, as `encode_prompt` gives.
            prompt_attention_mask: `[prompt, length]` bool: which of them are no padding.
            negative_prompt_embeds: Instead of `negative_prompt`; for classes, the labels to lead away from.
            negative_prompt_attention_mask: Of these.
            output_type: `pil`, `np`, `pt`, or `latent` for the codes.
            return_dict: Return the output object, or else a tuple of its fields.
            callback_on_step_end: `callback(pipe, step, timestep, tensors) -> dict`, after the prefill (step 0) and
                every round; `timestep` counts the codes of the slowest row. It may set `pipe.guidance_scale`, return
                other `negative_prompt_embeds`, and stop the call with `pipe._interrupt = True`.
            callback_on_step_end_tensor_inputs: What it is handed: `tokens` (`[row, cell]`, -1 where not drawn yet),
                `accepted` (drafted codes that the round kept, `[row]`), `negative_prompt_embeds`,
                `negative_prompt_attention_mask`.

        Raises:
            ValueError: A prompt is empty, too long or unknown, a number is out of its range, or a name is wrong.
        """
        self._guidance_scale, self._interrupt = guidance_scale, False
        refuse_guidance(guidance_scale)
        refuse_unknown(callback_on_step_end_tensor_inputs)
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type is one of {', '.join(OUTPUTS)}, not {output_type!r}")
        decoder = self.decoder(k)
        grid = decoder.target.grid
        conditions.refuse_size(self.side, height, width)
        guided = guidance_scale > 1
        warp = Warp.sampling(temperature, top_k, top_p, guidance=guidance_scale if guided else None)
        if num_images_per_prompt < 1:
            raise ValueError(f"num_images_per_prompt must be at least 1, got {num_images_per_prompt}")
        rows = num_images_per_prompt * conditions.count(prompt, class_labels, prompt_embeds)
        seeds = seeds_for(rows, seed, generator, "picture")
        condition = self.encode_prompt(
            prompt,
            class_labels=class_labels,
            negative_prompt=negative_prompt,
            num_images_per_prompt=num_images_per_prompt,
            guided=guided,
            prompt_embeds=prompt_embeds,
            prompt_attention_mask=prompt_attention_mask,
            negative_prompt_embeds=negative_prompt_embeds,
            negative_prompt_attention_mask=negative_prompt_attention_mask,
        )
        null, null_mask = getattr(condition, "null", None), getattr(condition, "null_mask", None)
        names = callback_on_step_end_tensor_inputs
        step_end = StepEnd(self, decoder.target, callback_on_step_end, names, null, null_mask)
        with self.progress_bar(total=rows * grid**2) as bar:
            state = decoder.start(condition, grid**2, seed=seeds, warp=warp)
            rounds = Rounds.begin(state, grid**2)
            while True:
                bar.update(rounds.step(state))
                step_end(state, rounds)
                if state.finished or self.interrupt:
                    break
                decoder.advance(state)
        codes = completed(rounds.codes(state), grid)
        images = self._images(codes, output_type)
        self.maybe_free_model_hooks()
        square = (grid, grid)
        made = TextToImageOutput(
            images, decoder.result(state).report, codes.unflatten(1, square), rounds.of.unflatten(1, square)
        )
        return made if return_dict else (made.images, made.report, made.codes, made.rounds)

    def encode_prompt(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        num_images_per_prompt: int = 1,
        guided: bool = True,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
    ) -> Condition:
        """What the target takes for a prompt: one row a picture; arguments as in a call.

        Raises:
            ValueError: A prompt is empty, too long or unknown, or does not fit the model.
        """
        if not guided and (negative_prompt is not None or negative_prompt_embeds is not None):
            raise ValueError("negative_prompt= needs guidance_scale > 1: without guidance nothing is led away from")
        count = conditions.count(prompt, class_labels, prompt_embeds)
        if self.transformer.config.model_type == "c2i":
            if class_labels is None or negative_prompt is not None:
                raise ValueError("this model draws classes: give class_labels=, and negative_prompt_embeds= as labels")
            condition = conditions.of_classes(self, class_labels, count, negative_prompt_embeds, guided)
        else:
            if class_labels is not None:
                raise ValueError("this model draws captions: give prompt=, not class_labels=")
            positive = (prompt, prompt_embeds, prompt_attention_mask)
            negative = (negative_prompt, negative_prompt_embeds, negative_prompt_attention_mask)
            condition = conditions.of_captions(self, positive, negative, count, guided)
        return conditions.repeated(condition, num_images_per_prompt)

    def decode_codes(self, codes: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of codes `[row, cell]` in raster order."""
        grid = round(codes.shape[1] ** 0.5)
        with awake(self.vq, self.vq.quantize.embedding):  # the codebook is read, not called
            return self.vq.decode(codes.unflatten(1, (grid, grid))).float().clamp(-1, 1)

    @property
    def side(self) -> int:
        """Height and width of a picture, in pixels."""
        return self.transformer.config.grid * self.vq.factor

    def _images(self, codes: Tensor, output_type: str) -> Any:
        if output_type == "latent":
            grid = round(codes.shape[1] ** 0.5)
            return codes.unflatten(1, (grid, grid))
        return VaeImageProcessor().postprocess(self.decode_codes(codes), output_type)
