"""`mmspec train text-eagle3`: the head of a shipped language model, trained on the texts that its target learned.

Beside them it reads what the target writes itself. What is held out is what was held out from the target.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text import corpus as corpora
from mmspec.kits.text.training import stream
from mmspec.registry.suggest import unknown
from mmspec_text.training.data import Data
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.run import train_drafter
from mmspec_text.training.texts import AT_ONCE, GIVEN, Stream, Texts

TEXT, SSM = "mmspec/text-14m", "mmspec/ssm-5m"
CODE, PROSE = 0.75, 0.25
"""Shares of the two kinds of text; prose is scarce, and a target that reads it is less sure."""
PROMPTED = (0.8, 0.2)
"""Shares of the two among the prompts that the target continues."""
RECIPES: Mapping[str, DrafterRecipe] = {
    TEXT: DrafterRecipe(steps=1200),
    SSM: DrafterRecipe(steps=1200),
}
"""The targets that have a shipped head, and its recipe."""
WINDOWS = 48
"""Most held-out windows of each kind that are counted."""


def train_shipped_head(
    out: Path,
    work: Path,
    prose_files: list[Path],
    recipe: DrafterRecipe = RECIPES[TEXT],
    device: str = "cpu",
    say: Callable[[str], None] = print,
    target: str = TEXT,
) -> None:
    """Run the recipe, or the rest of it, and write `<out>/<target>-eagle3`.

    Args:
        out: Folder that receives the head.
        work: Folder for checkpoints; delete it to start anew.
        prose_files: Plain text beside the standard library.
        recipe: Lengths and loss.
        device: Where to train.
        say: Receives lines of progress.
        target: The head's target, one of `RECIPES`.

    Raises:
        ValueError: There is no such prose; `work` is another run's, or of another recipe; or training cannot go on.
    """
    corpus = corpora.load(prose_files)
    model, tokenizer = load_model(target, device).float(), load_tokenizer(target)
    code, prose = (stream(tokenizer, documents) for documents in (corpus.code, corpus.prose))
    held = {}
    for kind, documents in (("code", corpus.held_out_code), ("prose", corpus.held_out_prose)):
        units = stream(tokenizer, documents)
        windows = units[: len(units) // recipe.context * recipe.context].view(-1, recipe.context)
        held[kind] = windows[:WINDOWS]
    beginnings = [Stream(units, share) for units, share in zip((code, prose), PROMPTED, strict=True)]
    prompts = Texts(beginnings, AT_ONCE, GIVEN, recipe.seed + 1).batch_at(0)
    data = Data([Stream(code, CODE), Stream(prose, PROSE)], held, prompts)
    train_drafter("eagle3", model, tokenizer, data, recipe, out / name_of(target), work, target, say)


def recipe_of(target: str) -> DrafterRecipe:
    """The recipe of a target's shipped head.

    Raises:
        ValueError: It has none.
    """
    if target not in RECIPES:
        raise ValueError(unknown("target with a shipped head", target, RECIPES))
    return RECIPES[target]


def name_of(target: str) -> str:
    """The name of a target's shipped head, without `mmspec/`."""
    return f"{target.rpartition('/')[2]}-eagle3"
