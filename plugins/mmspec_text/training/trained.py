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
    """The training of a drafter, of whatever kind.

    Attributes:
        model: The target, with frozen weights.
        tokenizer: The target's.
        name: The target's name.
        texts: What to train on.
        held: Held-out sequences by the text's name.
        recipe: Lengths and loss.
        work: Folder for checkpoints.
        say: Receives lines of progress.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    name: str
    texts: Texts
    held: Mapping[str, Batch]
    recipe: DrafterRecipe
    work: Path
    say: Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """A trained drafter.

    Attributes:
        write: Writes its files into a folder, which it makes if it is missing.
        facts: `parameters`, and `held_out`: what was counted on held-out text, by the text's name.
    """

    write: Callable[[Path], None]
    facts: Mapping[str, Any]
