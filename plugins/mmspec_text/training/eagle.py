"""Training of an EAGLE-3 head: a new head, the loss along its drafts, what it is on held-out text, its files."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.training.loop import fit
from mmspec_text.training.export import write_head
from mmspec_text.training.head_loss import head_loss
from mmspec_text.training.metrics import depth_metrics
from mmspec_text.training.new_head import HeadSizes, new_head, usual_boundaries
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Texts
from mmspec_text.training.trained import Trained


def trained_head(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    held: Mapping[str, Tensor],
    recipe: DrafterRecipe,
    work: Path,
    name: str,
    say: Callable[[str], None],
) -> Trained:
    """Train a head; arguments as in `mmspec_text.training.run.train_drafter`."""
    boundaries = usual_boundaries(model.config.get_text_config(decoder=True).num_hidden_layers)
    head = new_head(model, boundaries, HeadSizes(recipe.intermediate), None, recipe.seed)
    teacher = Teacher(model, boundaries)
    loss = head_loss(teacher, recipe.draft_loss, recipe.depth)
    with warnings.catch_warnings():  # norms in float32 under bfloat16 autocast are meant to be
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        fit(head, texts.batch_at, loss, recipe.loop("layers"), work, say)
    found = {}
    for kind, windows in held.items():
        found[kind] = asdict(depth_metrics(head, teacher, windows.to(model.device).split(1), recipe.depth).rounded())

    def write(folder: Path) -> None:
        write_head(head, boundaries, name, recipe.depth, folder)

    return Trained(write, {"parameters": sum(p.numel() for p in head.parameters()), "held_out": found})
