"""What a stage of training is given, and what it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

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


@dataclass(frozen=True)
class Trained:
    """A trained drafter."""

    write: Callable[[Path], None]  # writes its files into a folder, which it makes if it is missing
    facts: Mapping[str, Any]  # `parameters`, and `held_out`: what was counted on held-out text, by the text's name
