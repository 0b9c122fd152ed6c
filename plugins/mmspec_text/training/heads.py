"""Training of a head of any kind: the loss along its drafts, what it is on held-out text, its files."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mmspec.training.loop import fit
from mmspec_text.training.head_loss import head_loss
from mmspec_text.training.metrics import depth_metrics
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Texts
from mmspec_text.training.trained import Trained


@dataclass(frozen=True)
class NewHead:
    """A head before its training.

    Attributes:
        network: The head, joined to its target.
        boundaries: Of the target's layers, whose states it reads.
        hidden: The beginning of the names of its hidden matrices, which Muon updates.
        write: Writes what it is by then into a folder, which it makes if it is missing.
    """

    network: nn.Module
    boundaries: tuple[int, ...]
    hidden: str
    write: Callable[[Path], None]


Begin = Callable[[Any, DrafterRecipe, str], NewHead]
"""Makes a head for a target, by a recipe; the last argument is the target's name."""


def trained_head(
    begin: Begin,
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
    head = begin(model, recipe, name)
    teacher = Teacher(model, head.boundaries)
    loss = head_loss(teacher, recipe.draft_loss, recipe.depth)
    with warnings.catch_warnings():  # norms in float32 under bfloat16 autocast are meant to be
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        fit(head.network, texts.batch_at, loss, recipe.loop(head.hidden), work, say)
    found = {}
    for kind, windows in held.items():
        pieces = windows.to(model.device).split(1)
        found[kind] = asdict(depth_metrics(head.network, teacher, pieces, recipe.depth).rounded())
    return Trained(head.write, {"parameters": sum(p.numel() for p in head.network.parameters()), "held_out": found})
