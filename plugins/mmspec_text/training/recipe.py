"""The recipe of a trained head: its sizes, its loss, and the lengths of the run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.training.loop import LoopOptions, fit
from mmspec.training.losses import DraftLoss, Kind
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.training.eagle import HeadSizes, head_loss, new_head, usual_boundaries
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Texts


@dataclass(frozen=True)
class HeadRecipe:
    """Sizes and lengths.

    Attributes:
        steps: Optimiser steps.
        batch: Sequences of a step.
        context: Units of a sequence.
        depth: Units of a draft under training.
        loss: The loss at one depth (`mmspec.training.losses`).
        hard: Share of the text's own units beside it, in [0, 1].
        decay: Weight of a depth over that of the one before.
        learning_rate: The peak.
        intermediate: Numbers inside the head's MLP.
        seed: Of initial weights and of the order of sequences.
    """

    steps: int = 600
    batch: int = 6
    context: int = 320
    depth: int = 3
    loss: Kind = "kl"
    hard: float = 0.1
    decay: float = 0.8
    learning_rate: float = 2e-3
    intermediate: int = 512
    seed: int = 0


def fit_head(
    model: Any, texts: Texts, recipe: HeadRecipe, work: Path, say: Callable[[str], None] = print
) -> tuple[EagleNetwork, tuple[int, ...]]:
    """Train an EAGLE-3 head, or go on with it.

    Args:
        model: The target, in float32; its weights are frozen, those that the head shares among them.
        texts: What it reads.
        recipe: Sizes and lengths.
        work: Folder for checkpoints.
        say: Receives lines of progress.

    Returns:
        The head, and the boundaries of the target's layers that it reads.

    Raises:
        ValueError: Training cannot go on, or `work` is another run's.
    """
    model.requires_grad_(False)
    boundaries = usual_boundaries(model.config.get_text_config(decoder=True).num_hidden_layers)
    head = new_head(model, boundaries, HeadSizes(recipe.intermediate), None, recipe.seed)
    loss = head_loss(Teacher(model, boundaries), DraftLoss(recipe.loss, recipe.hard, recipe.decay), recipe.depth)
    options = LoopOptions(recipe.steps, recipe.learning_rate, warmup=min(40, recipe.steps // 10), hidden="layers")
    fit(head, texts.batch_at, loss, options, work, say)
    return head, boundaries
