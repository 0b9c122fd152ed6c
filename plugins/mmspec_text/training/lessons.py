"""The lessons of heads and draft models between calls: through the unroll and the losses of the training kit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmspec.hosts.target import TransformersTarget
from mmspec.training.losses import DraftLoss, Kind
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.training.draft_model import model_loss
from mmspec_text.training.eagle import write_head
from mmspec_text.training.heads import head_loss
from mmspec_text.training.teacher import Said, Teacher
from mmspec_text.training.texts import Batch

SHARED = ("embed_tokens.", "lm_head.")
"""Parts of a head that stay as they are, where it has them: they score and read units, in whatever text."""


class EagleLesson:
    """The lesson of an EAGLE head. It is a `Lesson`.

    `boundaries` of its states are asked in every lesson, since a probe may change them; `depth` counts a draft's units.
    """

    def __init__(
        self, network: EagleNetwork, target: Any, boundaries: Callable[[], Sequence[int]], loss: str, depth: int
    ) -> None:
        model = readable(target)
        self._network, self._boundaries, self._depth = network, boundaries, depth
        self._name = str(model.config._name_or_path or type(model).__name__)
        teachers: dict[tuple[int, ...], Teacher] = {}

        def said(ids: Tensor, own: Tensor | None) -> Said:
            wanted = tuple(boundaries())
            if wanted not in teachers:
                teachers[wanted] = Teacher(model, wanted)
            return teachers[wanted].said(ids, own)

        self._loss = head_loss(said, DraftLoss(cast("Kind", loss)), depth)

    def weights(self) -> list[nn.Parameter]:
        return [weight for name, weight in self._network.named_parameters() if not name.startswith(SHARED)]

    def loss(self, units: Tensor, counted: Tensor) -> Tensor:
        return self._loss(self._network, batch_of(units, counted))

    def save(self, folder: Path) -> None:
        write_head(self._network, self._boundaries(), self._name, self._depth, folder)


class ModelLesson:
    """The lesson of a draft model. It is a `Lesson`."""

    def __init__(self, small: TransformersTarget, target: Any, loss: str) -> None:
        model = readable(target)
        if small.vocab != target.vocab:
            raise ValueError(
                f"a draft model learns only in the target's own tokens: it has {small.vocab} ids, the target "
                f"{target.vocab}"
            )
        self._model: Any = small.model
        self._loss = model_loss(Teacher(model), DraftLoss(cast("Kind", loss)))

    def weights(self) -> list[nn.Parameter]:
        return list(self._model.parameters())

    def loss(self, units: Tensor, counted: Tensor) -> Tensor:
        return self._loss(self._model, batch_of(units, counted))

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(folder)


def batch_of(units: Tensor, counted: Tensor) -> Batch:
    """A row of which some units count: the loss compares the distributions in front of them."""
    return Batch(units, torch.nn.functional.pad(counted[:, 1:], (0, 1)))


def readable(target: Any) -> Any:
    """The model of a target that reads a text of ids alone."""
    if not isinstance(target, TransformersTarget):
        raise ValueError(f"drafters learn for language models of transformers, not for {type(target).__name__}")
    if target.model.config.is_encoder_decoder:
        raise ValueError("drafters learn for models that read ids alone, and this one has an encoder")
    return target.model
