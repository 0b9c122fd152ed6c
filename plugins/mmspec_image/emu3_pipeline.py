"""`Emu3Pipeline`: text in, pictures out, with transformers' Emu3."""

from collections.abc import Sequence
from math import isqrt

import torch
from torch import Tensor
from transformers import Emu3ForConditionalGeneration, ProcessorMixin

from mmspec.registry.numbers import whole
from mmspec_image.constraint import GridConstraint, emu3_grid
from mmspec_image.language_pipeline import Ids, WrittenPipeline
from mmspec_image.sampling import AUTHORS

AREA = 720 * 720
"""Pixels of a picture of Emu3-Gen; other models of the family say another number in their published configuration."""


class Emu3Pipeline(WrittenPipeline):
    """Draws pictures of any size with an Emu3 (arXiv 2409.18869), many codes a pass.

    Without a negative prompt, guidance leads away from the prompt without words. The authors lead away from a list of
    flaws, and add words of quality to every prompt; here a call says what it wants.

    Args:
        model: The model.
        processor: Its processor.
        image_area: Pixels of a picture whose size a call does not name; it is square.

    Example:
        ```python
        pipe = Emu3Pipeline.from_pretrained("BAAI/Emu3-Gen-hf", dtype="bfloat16", device="cuda")
        image = pipe("a red fox in the snow", seed=0).images[0]
        ```
    """

    loads = Emu3ForConditionalGeneration
    sampling = AUTHORS["Emu3"]

    def __init__(self, model: Emu3ForConditionalGeneration, processor: ProcessorMixin, image_area: int = AREA) -> None:
        super().__init__(model, processor)
        self.register_to_config(image_area=whole("image_area", image_area))

    @property
    def default_size(self) -> tuple[int, int]:
        cells = isqrt(self.config.image_area) // self.factor
        return cells, cells

    def ids_of(self, captions: Sequence[str]) -> Ids:
        rows, columns = self.size
        height, width = (cells * self.processor.downsample_ratio for cells in self.size)
        found = self.processor(
            text=list(captions),
            return_for_image_generation=True,
            ratio=f"{width}:{height}",
            image_area=height * width,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        if [*found["image_sizes"][0]] != [rows, columns]:
            said = " × ".join(map(str, found["image_sizes"][0]))
            raise ValueError(f"the processor asks for a picture of {said} codes, and the call for {rows} × {columns}")
        return Ids(found["input_ids"], found["attention_mask"])

    def null_ids(self, ids: Ids) -> Ids:
        return self.ids_of([""]).repeated(len(ids.ids))

    def constraint_of(self, ids: Tensor) -> GridConstraint:
        return emu3_grid(self.model, ids, *self.size)

    @torch.no_grad()
    def decode_units(self, units: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of visual ids `[row, cell]`, of the last call's size."""
        height, width = self.size
        lines = torch.nn.functional.pad(units.unflatten(1, (height, width)), (0, 1))  # a row end, which is not read
        ids = torch.nn.functional.pad(lines.flatten(1), (0, 3))
        pixels = self.model.decode_image_tokens(image_tokens=ids, height=height, width=width)
        return pixels.flatten(0, -4).float().clamp(-1, 1)
