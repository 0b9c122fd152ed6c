"""What a stage of training is given, what it returns, and the reference of a token filter.

The reference of AdaSPEC's filter (arXiv 2510.19779) is a drafter like the one that is trained, after one epoch of
forward KL. It begins with the same weights, and the drafter begins anew beside it, as in the paper: where the drafter
went on from the reference, nothing would distinguish them at first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mmspec.training.loop import fit
from mmspec.training.losses import DraftLoss, TokenFilter
from mmspec_text.training.batch import Batch
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.texts import Texts


@dataclass(frozen=True)
class Training:
    """The training of a drafter, of whatever kind."""

    model: Any  # the target, with frozen weights
    tokenizer: PreTrainedTokenizerBase  # the target's
    name: str  # the target's name
    texts: Texts  # what to train on
    held: Mapping[str, Batch]  # held-out sequences by the text's name
    recipe: DrafterRecipe  # lengths and loss
    work: Path  # folder for checkpoints
    say: Callable[[str], None]  # receives lines of progress

    def say_size(self, drafter: nn.Module) -> None:
        """Say how many numbers of a drafter are learnt, in how much memory, and in how many steps."""
        learnt = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
        memory = 16 * learnt / 1e9  # each, its gradient and AdamW's two means, in float32
        self.say(f"{learnt:,} parameters, up to {memory:.1f} GB while they learn; {self.recipe.steps} steps")


@dataclass(frozen=True)
class Trained:
    """A trained drafter."""

    write: Callable[[Path], None]  # writes its files into a folder, which it makes if it is missing
    facts: Mapping[str, Any]  # `parameters`, and `held_out`: what was counted on held-out text, by the text's name


def token_filter(
    of: Training,
    new: Callable[[], nn.Module],
    loss_of: Callable[[DraftLoss], Callable[[Any, Any], Tensor]],
    hidden: str | None,
) -> TokenFilter | None:
    """The filter that a recipe asks for, with its reference trained; None if all tokens are kept.

    `new` makes a drafter as it is before training; `hidden` begins the names of its hidden matrices.
    """
    if of.recipe.keep_tokens == 1:
        return None
    recipe = replace(of.recipe, steps=min(of.recipe.steps, of.texts.epoch), loss="kl", hard=0.0)
    of.say(f"the token filter's reference: {recipe.steps} steps")
    reference = new()
    fit(reference, of.texts.batch_at, loss_of(recipe.draft_loss), recipe.loop(hidden), of.work / "reference", of.say)
    return TokenFilter(reference.requires_grad_(False), recipe.keep_tokens)
