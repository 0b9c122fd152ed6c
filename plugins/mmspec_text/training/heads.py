"""Training of a head of any kind: the loss along its drafts, what it is on held-out text, its files."""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.training.loop import fit
from mmspec_text.training.head_loss import head_loss
from mmspec_text.training.metrics import depth_metrics
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.trained import Trained, Training


@dataclass(frozen=True)
class NewHead:
    """A head before its training.

    Attributes:
        network: The head, joined to its target.
        boundaries: Of the target's layers, whose states it reads.
        hidden: The beginning of the names of its hidden matrices, which Muon updates.
        write: Writes the head, as far as it is trained by then, into a folder; makes the folder if it is missing.
    """

    network: nn.Module
    boundaries: tuple[int, ...]
    hidden: str
    write: Callable[[Path], None]


Begin = Callable[[Any, DrafterRecipe, str], NewHead]
"""Makes a head for a target, by a recipe; the last argument is the target's name."""


def trained_head(begin: Begin, of: Training) -> Trained:
    """Train a head.

    Args:
        begin: Makes it.
        of: The target, what to train on, and how.
    """
    recipe = of.recipe
    head = begin(of.model, recipe, of.name)
    teacher = Teacher(of.model, head.boundaries)
    loss = head_loss(teacher, recipe.draft_loss, recipe.depth)
    with warnings.catch_warnings():  # norms in float32 under bfloat16 autocast are meant to be
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        fit(head.network, of.texts.batch_at, loss, recipe.loop(head.hidden), of.work, of.say)
    found = {}
    for kind, windows in of.held.items():
        pieces = windows.to(of.model.device).split(1)
        found[kind] = asdict(depth_metrics(head.network, teacher, pieces, recipe.depth).rounded())
    return Trained(head.write, {"parameters": sum(p.numel() for p in head.network.parameters()), "held_out": found})
