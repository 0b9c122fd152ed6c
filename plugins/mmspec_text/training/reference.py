"""The reference of AdaSPEC's token filter: a drafter like the one that is trained, after one epoch of forward KL.

It begins with the same weights, and the drafter begins anew beside it, as in the paper (arXiv 2510.19779): where the
drafter went on from the reference, nothing would distinguish them at first.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from mmspec.training.loop import fit
from mmspec.training.losses import DraftLoss, TokenFilter
from mmspec_text.training.trained import Training

LossOf = Callable[[DraftLoss], Callable[[Any, Any], Tensor]]
"""The loss of a drafter on a batch, by what it is at one depth."""


def token_filter(
    of: Training,
    new: Callable[[], nn.Module],
    loss_of: Callable[[DraftLoss], Callable[[Any, Any], Tensor]],
    hidden: str,
) -> TokenFilter | None:
    """The filter that a recipe asks for, with its reference trained; None if all tokens are kept.

    Args:
        of: The target, what to train on, and how.
        new: Makes a drafter as it is before training.
        loss_of: The loss of a drafter on a batch.
        hidden: The beginning of the names of its hidden matrices.
    """
    if of.recipe.keep_tokens == 1:
        return None
    recipe = replace(of.recipe, steps=min(of.recipe.steps, of.texts.epoch), loss="kl", hard=0.0)
    of.say(f"the token filter's reference: {recipe.steps} steps")
    reference = new()
    fit(reference, of.texts.batch_at, loss_of(recipe.draft_loss), recipe.loop(hidden), of.work / "reference", of.say)
    return TokenFilter(reference.requires_grad_(False), recipe.keep_tokens)
