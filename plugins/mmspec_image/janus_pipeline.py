"""`JanusPipeline`: text in, pictures out, with transformers' Janus."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import JanusForConditionalGeneration, ProcessorMixin

from mmspec.api.pipeline import Pipeline
from mmspec.kits.pictures.arguments import captions_of
from mmspec_image.models.janus import JanusForImages
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.stored import model_and_processor, placed
from mmspec_image.targets.janus import JanusTarget
from mmspec_image.targets.janus_prompt import JanusPrompt, padded_out


class JanusPipeline(TextToImagePipeline):
    """Draws pictures with a Janus, many codes a pass.

    Args:
        model: The model.
        processor: The model's processor, which formats prompts as in training.

    Example:
        ```python
        pipe = JanusPipeline.from_pretrained("deepseek-community/Janus-Pro-1B")
        image = pipe("a red fox in the snow", guidance_scale=5.0, seed=0).images[0]
        ```
    """

    target_module = "model"
    model_cpu_offload_seq = "model"
    _optional_components: list[str] = []  # noqa: RUF012  diffusers' own form

    def __init__(self, model: JanusForConditionalGeneration, processor: ProcessorMixin) -> None:
        Pipeline.__init__(self)
        self.register_modules(model=model, processor=processor)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        name: str | Path,
        *,
        device: str = "cpu",
        dtype: str | torch.dtype | None = None,
        torch_dtype: str | torch.dtype | None = None,
        **how: Any,
    ) -> "JanusPipeline":
        """Load a Janus as transformers stores it, or a pipeline as `save_pretrained` stores it.

        Args:
            name: A folder, or a hub name.
            device: The model's device.
            dtype: Dtype of the weights, by name or as torch's; default: float32.
            torch_dtype: diffusers' name for `dtype`.
            **how: As in `use`; default: as it was saved.

        Raises:
            ValueError: There is no such model, or weights are missing.
        """
        parts = model_and_processor(cls, JanusForImages, str(name), device, dtype, torch_dtype)
        return placed(cls(**parts), name, device, how)

    def encode_prompt(  # type: ignore[override]
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        negative_prompt: str | Sequence[str] | None = None,
        num_images_per_prompt: int = 1,
        guided: bool = True,
        **others: Any,
    ) -> JanusPrompt:
        """The target's prompt, one row a picture.

        Raises:
            ValueError: A prompt is empty, or an argument was given that this model does not take.
        """
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ValueError(f"a Janus draws from prompt= and negative_prompt=; it has no use for {', '.join(given)}")
        if negative_prompt is not None and not guided:
            raise ValueError("negative_prompt= needs guidance_scale > 1: without guidance nothing is led away from")
        ids, mask = self._written(prompt, num_images_per_prompt)
        if not guided:
            return JanusPrompt(ids, mask, guided=False)
        if negative_prompt is None:
            return JanusPrompt(ids, mask, padded_out(self.model.generation_config, ids), mask)
        negative = captions_of(negative_prompt)
        rows = len(ids) // num_images_per_prompt
        if len(negative) not in (1, rows):
            raise ValueError(f"{len(negative)} negative prompts for {rows} prompts; give one, or one a prompt")
        return JanusPrompt(ids, mask, *self._written(negative * (rows // len(negative)), num_images_per_prompt))

    def decode_units(self, units: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of codes `[row, cell]` in raster order."""
        return JanusTarget(self.model).decode(units)

    @property
    def side(self) -> int:
        """Height and width of a picture, in pixels."""
        vq = self.model.config.vq_config
        return int(vq.num_patches * 2 ** (len(vq.channel_multiplier) - 1))

    def _written(self, prompt: str | Sequence[str] | None, times: int) -> tuple[Tensor, Tensor]:
        """Ids and mask of prompts, each repeated `times` times, padded on the left."""
        if prompt is None:
            raise ValueError("say what the picture shows: prompt=")
        said = captions_of(prompt)
        empty = [i for i, text in enumerate(said) if not text.strip()]
        if empty:
            raise ValueError(f"prompt {empty[0]} is empty; say what the picture shows")
        inputs = self.processor(
            text=said, generation_mode="image", padding=True, padding_side="left", return_tensors="pt"
        )
        device = self._execution_device
        ids, mask = inputs["input_ids"].to(device), inputs["attention_mask"].to(device)
        return ids.repeat_interleave(times, 0), mask.repeat_interleave(times, 0)
