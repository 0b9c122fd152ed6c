"""What pipelines share whose model is one of transformers' language models: loading, and prompts as ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.api.saved import restored
from mmspec.hosts.devices import refuse_device
from mmspec.hosts.dtypes import dtype_of
from mmspec.hosts.loading import load_as, load_processor
from mmspec.kits.pictures.arguments import negatives_of
from mmspec.kits.text.language import listed
from mmspec_image.pipeline import TextToImagePipeline


class LanguageModelPipeline(TextToImagePipeline):
    """Draws pictures with a language model.

    A subclass registers a `model` of the class `loads` and its `processor`.

    Attributes:
        loads: The class with which a model is loaded.
    """

    target_module = "model"
    model_cpu_offload_seq = "model"
    _optional_components: list[str] = []  # noqa: RUF012  diffusers' own form
    loads: ClassVar[type[PreTrainedModel]]

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str = "cpu",
        dtype: str | torch.dtype | None = None,
        torch_dtype: str | torch.dtype | None = None,
        **how: Any,
    ) -> Self:
        """Load a model as transformers stores it, or a pipeline as `save_pretrained` stores it.

        Args:
            name: A folder, or a hub name.
            device: The model's device.
            dtype: Dtype of the weights, by name or as torch's; default: float32.
            torch_dtype: diffusers' name for `dtype`.
            **how: As in `use`, default: as it was saved; and further arguments of the class.

        Raises:
            ValueError: There is no such model or device, or weights are missing.
        """
        refuse_device(device)
        further = {part: how.pop(part) for part in cls._get_signature_types() if part in how}
        model_at, processor_at = cls.places_of(str(name), "model", "processor")
        model = load_as(cls.loads, model_at, dtype_of(dtype, torch_dtype))
        pipe = cls(model=model, processor=load_processor(processor_at), **further)
        pipe.register_to_config(_name_or_path=str(name))
        return pipe.to(device).use(**restored(Path(name), how))


class Ids(NamedTuple):
    """Prompts as ids, padded on the left."""

    ids: Tensor  # `[row, prompt]` int64
    mask: Tensor  # `[row, prompt]` int64: 0 at padding

    def repeated(self, times: int) -> "Ids":
        """Every row `times` times; the rows of a prompt stay together."""
        return Ids(*(part.repeat_interleave(times, 0) for part in self))

    def to(self, device: object) -> "Ids":
        return Ids(self.ids.to(device), self.mask.to(device))


def texts_of(
    prompt: str | Sequence[str] | None,
    negative_prompt: str | Sequence[str] | None,
    guided: bool,
    others: Mapping[str, Any],
) -> tuple[list[str], list[str] | None]:
    """The prompts of a call, and one negative prompt for each if any is given; these models take no other argument of a
    prompt.

    Raises:
        ValueError: A prompt is empty, the negative prompts do not fit, or another argument was given.
    """
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ValueError(f"this model draws from prompt= and negative_prompt=; it has no use for {', '.join(given)}")
    if negative_prompt is not None and not guided:
        raise ValueError("negative_prompt= needs guidance_scale > 1: without guidance nothing is led away from")
    if prompt is None:
        raise ValueError("say what the picture shows: prompt=")
    said = listed(prompt)
    empty = [i for i, text in enumerate(said) if not text.strip()]
    if empty:
        raise ValueError(f"prompt {empty[0]} is empty; say what the picture shows")
    return said, None if negative_prompt is None else negatives_of(negative_prompt, len(said))
