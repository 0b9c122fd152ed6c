"""The input and the result of a stage of training, and the fit of a drafter of any kind.

The reference of AdaSPEC's filter (arXiv 2510.19779) is a drafter like the one that is trained, which forward KL has
trained to its end (the recipe's `reference`), or for one epoch, here. Both begin with the same weights, as in the
paper: where the drafter went on from the reference, nothing would distinguish them at first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from mmspec.training.loop import fit
from mmspec.training.losses import TokenFilter
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.texts import Batch, Texts


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


@dataclass(frozen=True)
class Trained:
    """A trained drafter."""

    write: Callable[[Path], None]  # writes its files into a folder, which it makes if it is missing
    facts: Mapping[str, Any]  # `parameters`, and `held_out`: what was counted on held-out text, by the text's name


def fit_drafter(
    of: Training,
    drafter: nn.Module,
    new: Callable[[], nn.Module],
    loss_of: Callable[..., Any],
    hidden: str | None,
    reference: nn.Module | None = None,
) -> None:
    """Train a drafter by a recipe; where that keeps some tokens alone, a reference first, if there is none.

    `new` makes a drafter as it is before training; `loss_of` a loss of a `DraftLoss` and, as `chosen`, the filter of
    tokens; `hidden` begins the names of hidden matrices.
    """
    recipe, chosen = of.recipe, None
    if recipe.keep_tokens != 1 and reference is None:
        first = replace(recipe, steps=min(recipe.steps, of.texts.epoch), loss="kl", hard=0.0)
        of.say(f"the token filter's reference: {first.steps} steps")
        reference, folder = new(), of.work.with_name("reference")
        fit(reference, of.texts.batch_at, loss_of(first.draft_loss), first.loop(hidden), folder, of.say)
    if reference is not None:
        chosen = TokenFilter(reference.requires_grad_(False), recipe.keep_tokens)
    learnt = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    memory = 16 * learnt / 1e9  # each, its gradient and AdamW's two means, in float32
    of.say(f"{learnt:,} parameters, up to {memory:.1f} GB while they learn; {recipe.steps} steps")
    loss = loss_of(recipe.draft_loss, chosen=chosen)
    fit(drafter, of.texts.batch_at, loss, recipe.loop(hidden), of.work, of.say)
