"""Training of a head of any kind: the loss along its drafts, what it is on held-out text, its files."""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from mmspec.training.loop import fit
from mmspec.training.losses import DraftLoss, TokenFilter
from mmspec_text.training.batch import Batch
from mmspec_text.training.head_loss import head_loss
from mmspec_text.training.metrics import depth_metrics
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.reference import token_filter
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.trained import Trained, Training
from mmspec_text.training.vocabulary import drafted_ids


@dataclass(frozen=True)
class NewHead:
    """A head before its training."""

    network: nn.Module  # the head, joined to its target
    boundaries: tuple[int, ...]  # of the target's layers, whose states it reads
    hidden: str  # the beginning of the names of its hidden matrices, which Muon updates
    # Writes the head, as far as it is trained by then, into a folder; makes the folder if it is missing
    write: Callable[[Path], None]


class Begin(Protocol):
    """Makes a head."""

    def __call__(self, model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
        """A head before training.

        Args:
            model: The target.
            recipe: Its sizes, and the seed of its weights.
            name: The target's name.
            ids: `[draft vocabulary]` int64, ascending: the ids that it scores; None: all of them.
        """
        ...


def trained_head(begin: Begin, of: Training) -> Trained:
    """Train a head.

    Args:
        begin: Makes it.
        of: The target, what to train on, and how.
    """
    recipe = of.recipe
    size = recipe.draft_vocab
    ids = None if size is None else drafted_ids(of.texts.sources, size, of.model, of.tokenizer)
    head = begin(of.model, recipe, of.name, ids)
    teacher = Teacher(of.model, head.boundaries)

    def loss_of(loss: DraftLoss, chosen: TokenFilter | None = None) -> Callable[[nn.Module, Batch], Tensor]:
        return head_loss(teacher, loss, recipe.depth, chosen, recipe.anchors)

    with warnings.catch_warnings():  # norms in float32 under bfloat16 autocast are meant to be
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        chosen = token_filter(of, lambda: begin(of.model, recipe, of.name, ids).network, loss_of, head.hidden)
        loss = loss_of(recipe.draft_loss, chosen)
        fit(head.network, of.texts.batch_at, loss, recipe.loop(head.hidden), of.work, of.say)
    found = {}
    for kind, windows in of.held.items():
        pieces = windows.to(of.model.device).apart()
        found[kind] = asdict(depth_metrics(head.network, teacher, pieces, recipe.depth).rounded())
    return Trained(head.write, {"parameters": sum(p.numel() for p in head.network.parameters()), "held_out": found})
