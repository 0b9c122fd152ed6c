"""Arguments of a picture pipeline's call: prompts or classes, counted and checked; how it draws; the size."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from mmspec.kits.text.language import listed

Prompt = str | Sequence[str] | None
Labels = int | Sequence[int] | Tensor


class Sampling(NamedTuple):
    """The settings with which a model's authors draw: what a call uses where it does not say."""

    guidance_scale: float
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def filled(self, **given: Any) -> Self:
        """The same with what a call gives; None: nothing."""
        return self._replace(**{name: value for name, value in given.items() if value is not None})

    @property
    def guided(self) -> bool:
        """True if there is an unconditional half."""
        return self.guidance_scale > 1


def count(prompt: Prompt, class_labels: Labels | None, embeds: Tensor | None) -> int:
    """The number of prompts of a call; refuses none, and two forms of it."""
    given = {"prompt": prompt, "class_labels": class_labels, "prompt_embeds": embeds}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ValueError(f"give one of prompt=, class_labels= and prompt_embeds=; got {' and '.join(named) or 'none'}")
    if embeds is not None and not isinstance(embeds, Tensor):
        raise ValueError(f"prompt_embeds is a tensor [prompt, length, width], not {embeds!r}")
    if prompt is not None:
        return len(listed(prompt))
    return len(labels_of(class_labels)) if class_labels is not None else len(embeds)  # type: ignore[arg-type]


def negatives_of(negative_prompt: str | Sequence[str], prompts: int) -> list[str]:
    """Negative prompts, one a prompt."""
    said = listed(negative_prompt)
    if len(said) not in (1, prompts):
        raise ValueError(f"{len(said)} negative prompts for {prompts} prompts; give one, or one a prompt")
    return said * (prompts // len(said))


def labels_of(labels: Labels) -> Tensor:
    """One class or several, `[class]` int64."""
    try:
        listed = torch.as_tensor(labels).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        listed = torch.empty(0)
    if not len(listed) or listed.is_floating_point() or listed.dtype == torch.bool:
        raise ValueError(f"class_labels is a class, or a list of at least one class, not {labels!r}")
    return listed.long()


def in_range(labels: Tensor, classes: int) -> Tensor:
    """The labels, all of which have to be classes of the model."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"there is no class {int(wrong[0])}: this model has the classes 0 to {classes - 1}")
    return labels


def one_each(values: Tensor, rows: int, what: str) -> Tensor:
    """`[rows, …]` of one value for all prompts, or one a prompt."""
    if len(values) not in (1, rows):
        raise ValueError(f"{len(values)} {what} for {rows} prompts; give one, or one a prompt")
    return values.expand(rows, *values.shape[1:])
