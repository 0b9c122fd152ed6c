"""What pipelines share whose pictures a language model writes: prompts that ask for a size, constraint, codes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from mmspec.core.guided import NULL_INPUTS
from mmspec.core.known_units import OnlyAllowed
from mmspec.core.warp import Warp
from mmspec.kits.pictures.pipeline import Asked
from mmspec_image.constraint import GridConstraint
from mmspec_image.language_pipeline import Ids, LanguageModelPipeline, texts_of


class Written(NamedTuple):
    """The prompt of a call."""

    inputs: dict[str, Any]  # as the target's `start` takes it
    constraint: GridConstraint  # which ids may follow

    @property
    def given(self) -> Tensor:
        ids: Tensor = self.inputs["input_ids"]
        return ids

    @property
    def mask(self) -> Tensor:
        mask: Tensor = self.inputs["attention_mask"]
        return mask

    @property
    def null(self) -> Tensor | None:
        return self.inputs.get(NULL_INPUTS, {}).get("input_ids")

    @property
    def null_mask(self) -> Tensor | None:
        return self.inputs.get(NULL_INPUTS, {}).get("attention_mask")


class WrittenPipeline(LanguageModelPipeline):
    """Draws pictures with a language model, many codes a pass.

    A subclass registers a `model`, whose `default_size` and `factor` it says. It defines `ids_of`, `null_ids`,
    `constraint_of` and `decode_units`.
    """

    _size = 0, 0

    @property
    def default_size(self) -> tuple[int, int]:
        """Rows and columns of codes of a picture whose size a call does not name."""
        raise NotImplementedError

    @property
    def factor(self) -> int:
        """Pixels of a code, per side."""
        raise NotImplementedError

    def ids_of(self, captions: Sequence[str]) -> Ids:
        """Prompts that ask for pictures of the call's size (`size`)."""
        raise NotImplementedError

    def null_ids(self) -> Ids:
        """One row: what guidance leads away from where a call has no negative prompt."""
        raise NotImplementedError

    def constraint_of(self, ids: Tensor) -> GridConstraint:
        """The ids that may follow prompts `[row, prompt]`."""
        raise NotImplementedError

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

    def encode_prompt(  # type: ignore[override]
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        negative_prompt: str | Sequence[str] | None = None,
        num_images_per_prompt: int = 1,
        guided: bool = True,
        **others: Any,
    ) -> Written:
        """The target's prompt, one row a picture, and its constraint; arguments as in a call.

        Raises:
            ValueError: A prompt is empty, or an argument was given that this model does not take.
        """
        said, negative = texts_of(prompt, negative_prompt, guided, others)
        ids, mask = self.ids_of(said).repeated(num_images_per_prompt).to(self._execution_device)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if guided:
            null = self.null_ids().repeated(len(said)) if negative is None else self.ids_of(negative)
            null = null.repeated(num_images_per_prompt).to(self._execution_device)
            inputs[NULL_INPUTS] = {"input_ids": null.ids, "attention_mask": null.mask}
        return Written(inputs, self.constraint_of(ids))

    def asked(self, condition: Written, warp: Warp | None) -> Asked:
        constraint, warp = condition.constraint, Warp() if warp is None else warp
        only = replace(warp, processors=[OnlyAllowed(constraint), *warp.processors], forced=constraint.forced)
        return Asked(condition.inputs, constraint.grid, only)
