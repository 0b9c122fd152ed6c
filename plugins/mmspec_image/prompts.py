"""Prompts as ids, for pictures that a language model draws."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from mmspec.kits.pictures.arguments import captions_of, negatives_of


class Ids(NamedTuple):
    """Prompts as ids, padded on the left."""

    ids: Tensor  # `[row, prompt]` int64
    mask: Tensor  # `[row, prompt]` int64: 0 at padding

    def repeated(self, times: int) -> "Ids":
        """Every row `times` times; the rows of a prompt stay together."""
        return Ids(*(part.repeat_interleave(times, 0) for part in self))

    def to(self, device: object) -> "Ids":
        """The same on a device."""
        return Ids(self.ids.to(device), self.mask.to(device))


def texts_of(
    prompt: str | Sequence[str] | None,
    negative_prompt: str | Sequence[str] | None,
    guided: bool,
    others: Mapping[str, Any],
) -> tuple[list[str], list[str] | None]:
    """The prompts of a call, and one negative prompt for each if any is given.

    Args:
        prompt: As a call gives it.
        negative_prompt: As a call gives it.
        guided: Whether the call has guidance.
        others: The call's other arguments of a prompt, none of which these models take.

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
    said = captions_of(prompt)
    empty = [i for i, text in enumerate(said) if not text.strip()]
    if empty:
        raise ValueError(f"prompt {empty[0]} is empty; say what the picture shows")
    return said, None if negative_prompt is None else negatives_of(negative_prompt, len(said))
