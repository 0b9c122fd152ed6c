"""The common part of pipelines whose model is one of transformers' language models: loading, and prompts as ids.

Emu3 and the Chameleon family write pictures into texts: their prompts ask for a size, and a constraint says which ids
may follow (`WrittenPipeline`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, ProcessorMixin

from mmspec.api.pipeline import Pipeline
from mmspec.api.stored import Stored, places_of
from mmspec.core.guided import NULL_INPUTS
from mmspec.core.known_units import OnlyAllowed
from mmspec.core.warp import Warp
from mmspec.hosts.devices import awake
from mmspec.hosts.loading import load_as, load_processor
from mmspec.kits.pictures.arguments import negatives_of
from mmspec.kits.pictures.conditions import Guiding
from mmspec.kits.pictures.pipeline import Asked
from mmspec.kits.text.language import listed
from mmspec_image.constraint import GridConstraint
from mmspec_image.pipeline import TextToImagePipeline


class Ids(NamedTuple):
    """Prompts as ids, padded on the left."""

    ids: Tensor  # `[row, prompt]` int64
    mask: Tensor  # `[row, prompt]` int64: 0 at padding

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor | None) -> "Ids":
        """The same prompts with no more padding than the longest one needs; a mask of None: no padding."""
        first = 0 if mask is None else int(mask.any(0).long().argmax())
        return cls(ids[:, first:], torch.ones_like(ids) if mask is None else mask[:, first:])

    def repeated(self, times: int) -> "Ids":
        """Every row `times` times; the rows of a prompt stay together."""
        return Ids(*(part.repeat_interleave(times, 0) for part in self))

    def to(self, device: str | torch.device) -> "Ids":
        return Ids(self.ids.to(device), self.mask.to(device))


class LanguageModelPipeline(TextToImagePipeline):
    """Draws pictures with a language model.

    A subclass registers a `model` of the class `loads` and its `processor`, and defines `ids_of`, `null_ids` and
    `condition_of`.

    Attributes:
        loads: The class with which a model is loaded.
    """

    target_module = "model"
    model_cpu_offload_seq = "model"
    _optional_components: list[str] = []  # noqa: RUF012  diffusers' own form
    loads: ClassVar[type[PreTrainedModel]]

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin) -> None:
        Pipeline.__init__(self)
        self.register_modules(model=model, processor=processor)

    def fit(self) -> None:
        """The model alone decodes its codes; a subclass that has another part says how both fit."""

    @classmethod
    def _parts(
        cls, stored: Stored | None, name: str, dtype: torch.dtype, given: dict[str, Any]
    ) -> tuple[Stored | None, dict[str, Any]]:
        """Of a model as transformers stores it, or of a pipeline as `save_pretrained` stores it."""
        model_at, processor_at = places_of(stored, name, "model", "processor")
        if "model" not in given:
            given["model"] = load_as(cls.loads, model_at, dtype)
        if "processor" not in given:
            given["processor"] = load_processor(processor_at)
        return stored, {**({} if stored is None else stored.index.settings), **given}

    def ids_of(self, captions: Sequence[str]) -> Ids:
        """Prompts that ask for pictures of the call's size."""
        raise NotImplementedError

    def null_ids(self, ids: Ids) -> Ids:
        """The null prompt of every row: what guidance leads away from where a negative prompt is None or ""."""
        raise NotImplementedError

    def negative_ids(self, words: Sequence[str]) -> Ids:
        """Negative prompts; a subclass whose authors word them in another way than prompts overrides this."""
        return self.ids_of(words)

    def away(self, words: str) -> Guiding:
        return Guiding(*self.negative_ids([words]).to(self._execution_device), None, None)

    def condition_of(self, ids: Ids, null: Ids | None) -> Any:
        """The target's prompt; `null` is what guidance leads away from, None without guidance."""
        raise NotImplementedError

    def encode_prompt(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        negative_prompt: str | Sequence[str] | None = None,
        num_images_per_prompt: int = 1,
        guided: bool = True,
        **others: Any,
    ) -> Any:
        """The target's prompt, one row a picture; arguments as in a call.

        Raises:
            ValueError: A prompt is empty, the negative prompts do not fit, or an argument was given that these models
                do not take.
        """
        given = [name for name, value in others.items() if value is not None]
        if given:
            known = "this model draws from prompt= and negative_prompt="
            raise ValueError(f"{known}; it has no use for {', '.join(given)}")
        if negative_prompt is not None and not guided:
            raise ValueError("negative_prompt= needs guidance_scale > 1: without guidance nothing is led away from")
        if prompt is None:
            raise ValueError("say what the picture shows: prompt=")
        said = listed(prompt)
        empty = [i for i, text in enumerate(said) if not text.strip()]
        if empty:
            raise ValueError(f"prompt {empty[0]} is empty; say what the picture shows")

        ids = self.ids_of(said).repeated(num_images_per_prompt).to(self._execution_device)
        if not guided:
            return self.condition_of(ids, None)
        null = self.null_ids(ids).to(self._execution_device)
        if negative_prompt is not None:
            away = [text for text in negatives_of(negative_prompt, len(said)) for _ in range(num_images_per_prompt)]
            null = Ids.of(*self.led_away([text if text.strip() else None for text in away], *null))
        return self.condition_of(ids, null)


class Written(NamedTuple):
    """The prompt of a call."""

    inputs: dict[str, Any]  # as the target's `start` takes it
    constraint: GridConstraint  # which ids may follow

    @property
    def guiding(self) -> Guiding:
        null = self.inputs.get(NULL_INPUTS, {})
        ids, mask = self.inputs["input_ids"], self.inputs["attention_mask"]
        return Guiding(ids, mask, null.get("input_ids"), null.get("attention_mask"))

    def asked(self, warp: Warp | None) -> Asked:
        """The part of a call that the target is asked for: codes alone where the grid has cells."""
        grid, warp = self.constraint, Warp() if warp is None else warp
        allowed = OnlyAllowed(grid, grid.allowed.to(self.inputs["input_ids"].device))
        return Asked(self.inputs, grid.grid, replace(warp, processors=[allowed, *warp.processors], forced=grid.forced))


class WrittenPipeline(LanguageModelPipeline):
    """Draws pictures with a language model, many codes a pass.

    A subclass registers a `model`, whose `default_size` it says. It defines `ids_of`, `null_ids`, `constraint_of`, and
    `codes_of` or, without a `vq` of diffusers, `decode_units`.
    """

    _size = 0, 0

    @property
    def default_size(self) -> tuple[int, int]:
        """Rows and columns of codes of a picture whose size a call does not name."""
        raise NotImplementedError

    @property
    def factor(self) -> int:
        """Pixels of a code, per side."""
        return int(2 ** (len(self.model.config.vq_config.channel_multiplier) - 1))

    def constraint_of(self, ids: Tensor) -> GridConstraint:
        """The ids that may follow prompts `[row, prompt]`."""
        raise NotImplementedError

    def codes_of(self, units: Tensor) -> Tensor:
        """The codes of the `vq` that ids `[row, cell]` stand for."""
        raise NotImplementedError

    @torch.no_grad()
    def decode_units(self, units: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of ids of codes `[row, cell]`, of the last call's size."""
        shape = len(units), *self.size, self.vq.config.vq_embed_dim or self.vq.config.latent_channels
        with awake(self.vq, self.vq.quantize.embedding):
            pixels: Tensor = self.vq.decode(self.codes_of(units).flatten(), force_not_quantize=True, shape=shape).sample
        return pixels.float().clamp(-1, 1)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of codes of the running call, or of the last one."""
        return self._size if all(self._size) else self.default_size

    @property
    def side(self) -> int:
        """Height of a picture of the default size, in pixels."""
        return self.default_size[0] * self.factor

    def set_size(self, height: int | None, width: int | None) -> None:
        """Take any size.

        Raises:
            ValueError: Height or width is no whole number of codes.
        """
        cells = list[int]()
        for given, usual in zip((height, width), self.default_size, strict=True):
            pixels = usual * self.factor if given is None else given
            if pixels < self.factor or pixels % self.factor:
                raise ValueError(f"height and width are multiples of {self.factor} pixels, and not {pixels}")
            cells.append(pixels // self.factor)
        self._size = cells[0], cells[1]

    def condition_of(self, ids: Ids, null: Ids | None) -> Written:
        inputs: dict[str, Any] = {"input_ids": ids.ids, "attention_mask": ids.mask}
        if null is not None:
            inputs[NULL_INPUTS] = {"input_ids": null.ids, "attention_mask": null.mask}
        return Written(inputs, self.constraint_of(ids.ids))

    def asked(self, condition: Written, warp: Warp | None) -> Asked:
        return condition.asked(warp)
