"""The grid of a picture as transformers' `prefix_allowed_tokens_fn`: for unmodified `generate`, and for ours as data.

Emu3 and the Chameleon family write the ids of a picture into a text; Emu3 and Lumina-mGPT with a row end behind every
row of codes. Which ids may follow is known from the grid alone.

Example:
    ```python
    grid = emu3_grid(model, inputs["input_ids"], height, width)
    with mmspec.enable(model, "gs-sjd", k=16):
        ids = model.generate(**inputs, prefix_allowed_tokens_fn=grid, max_new_tokens=grid.length, do_sample=True)
    ```
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.known_units import OnlyAllowed
from mmspec.core.refusal import OutOfScopeError
from mmspec.kits.pictures.grid_spec import GridSpec, Stage


class GridConstraint:
    """The ids that may follow a prompt, of so many columns with its padding, that asks for a picture. Refuses a code
    that is there twice, or stands elsewhere in the grid.
    """

    speculative = "history"  # it is a pure function: drafts are allowed also where it is called

    def __init__(self, grid: GridSpec, codes: Sequence[int], prompt: int) -> None:
        if not codes or len(set(codes)) != len(codes):
            raise ValueError(f"a picture needs codes, each of them once; got {len(codes)}, {len(set(codes))} different")
        both = sorted(set(codes) & set(grid.forced.tolist()))
        if both:
            raise ValueError(f"the id {both[0]} ends rows or pictures of this grid, so no cell can have it as a code")
        self.grid, self.prompt = grid, prompt
        self.forced, self.allowed = grid.forced, torch.tensor(sorted(codes), dtype=torch.int64)
        self._ids, self._codes = grid.forced.tolist(), sorted(codes)

    @property
    def length(self) -> int:
        """Units of a picture: `max_new_tokens` of the call."""
        return self.grid.length

    def __call__(self, batch_id: int, input_ids: Tensor) -> list[int]:
        """The ids that may follow `input_ids [column]`; behind the picture, its last known id again."""
        known = self._ids[min(len(input_ids) - self.prompt, self.length - 1)]
        return self._codes if known < 0 else [known]


def emu3_grid(model: Any, input_ids: Tensor, height: int, width: int, tokenizer: Any = None) -> GridConstraint:
    """The grid of a picture of `height × width` codes that Emu3 draws; refuses a prompt for another size.

    The model's vocabulary map names the visual ids. `input_ids [batch, prompt]` is what the processor makes with
    `return_for_image_generation=True`, and sizes are as in its `image_sizes`; without a tokenizer they are not compared
    with what the prompt says.
    """
    names = model.config.vocabulary_map
    row_end, image_end, begin, end, image = (
        names.get(name)
        for name in ("<|extra_200|>", "<|extra_201|>", "<|image start|>", "<|image end|>", "<|image token|>")
    )
    if None in (row_end, image_end, begin, end, image):
        raise OutOfScopeError("the model's vocabulary map names no row ends: it is no Emu3 that draws")
    if bool((input_ids[:, -1] != image).any()):
        raise ValueError(
            "the prompt does not ask for a picture: it must end with <|image token|>; make it with "
            "processor(..., return_for_image_generation=True)"
        )
    if tokenizer is not None:
        for row in input_ids:
            start = int((row == begin).nonzero()[-1]) if bool((row == begin).any()) else -1
            said = tokenizer.decode(row[start + 1 : -1]).strip()
            if said != f"{height}*{width}":
                raise ValueError(f"the prompt asks for a picture of {said!r} codes, and the grid has {height}*{width}")
    spec = GridSpec((Stage(height, width, row_end),), (image_end, end, _end_of_text(model)))
    codes = [number for name, number in names.items() if name.startswith("<|visual token")]
    return GridConstraint(spec, codes, input_ids.shape[1])


def chameleon_grid(model: Any, input_ids: Tensor, height: int, width: int) -> GridConstraint:
    """The grid of a picture of `height × width` codes that a Chameleon, an Anole or a Lumina-mGPT draws.

    A prompt `[batch, prompt]` for Chameleon or Anole ends where the picture begins. One for Lumina-mGPT goes on with
    the picture's size, `height / 2` and `width / 2`, each as one id; its rows have row ends. The model's vocabulary map
    names the ids. Refuses a prompt for another size.
    """
    names = model.config.vocabulary_map or {}
    begin, end, row_end = (names.get(name) for name in ("<racm3:break>", "<eoss>", LUMINA_ROW_END))
    codes = [number for name, number in names.items() if name.startswith("IMGIMG")]
    if begin is None or end is None or not codes:
        raise OutOfScopeError("the model's vocabulary map names no codes of pictures: it is no Chameleon that draws")
    if bool((input_ids[:, -1] == begin).all()):
        return GridConstraint(GridSpec((Stage(height, width),), (end,)), codes, input_ids.shape[1])
    if input_ids.shape[1] < 3 or bool((input_ids[:, -3] != begin).any()):
        raise ValueError(
            "the prompt does not ask for a picture: it must end with <racm3:break>, or with that and a size"
        )
    if row_end is None:
        raise OutOfScopeError(f"the model's vocabulary map has no {LUMINA_ROW_END}, with which rows end")
    header = [names.get(lumina_size(cells)) for cells in (height, width)]
    if None in header or bool((input_ids[:, -2:] != torch.tensor(header, device=input_ids.device)).any()):
        said = input_ids[0, -2:].tolist()
        raise ValueError(
            f"a picture of {height} × {width} codes has the size {header}, and the prompt ends with {said}"
        )
    return GridConstraint(GridSpec((Stage(height, width, row_end),), (end,)), codes, input_ids.shape[1])


LUMINA_ROW_END = "<reserved08799>"  # Lumina-mGPT's row end, the id 8803 of Chameleon's tokenizer


def lumina_size(cells: int) -> str:
    """The name of the id for so many rows or columns of codes: 8804 + cells / 2, four more than its name says."""
    if cells % 2:
        raise ValueError(f"sizes of Lumina-mGPT are even numbers of codes, and not {cells}")
    return f"<reserved{8800 + cells // 2:05d}>"


def constrained_to(processors: Sequence[Any]) -> GridSpec | None:
    """The grid of the constraint among a warp's processors; None without one."""
    known = [processor.known for processor in processors if isinstance(processor, OnlyAllowed)]
    return next((constraint.grid for constraint in known if isinstance(constraint, GridConstraint)), None)


def _end_of_text(model: Any) -> int:
    """The id with which the model ends a text; `generate` stops there."""
    config = model.generation_config
    ends = config.eos_token_id if config.eos_token_id is not None else model.config.get_text_config().eos_token_id
    first = ends[0] if isinstance(ends, list) else ends
    if first is None:
        raise ValueError("the model has no eos_token_id, with which a picture ends")
    return int(first)
