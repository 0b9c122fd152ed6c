"""Recipe `text-eagle3` and others: heads of shipped models, trained on the texts that their target learned.

Beside them a head reads what the target writes itself. What is held out is what was held out from the target.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.registry.suggest import unknown
from mmspec_text.training.batch import Batch
from mmspec_text.training.data import Data
from mmspec_text.training.recipe import DrafterKind, DrafterRecipe
from mmspec_text.training.run import train_drafter
from mmspec_text.training.texts import Stream, Texts
from mmspec_text.training.written import AT_ONCE, GIVEN
from tools.train.text import corpus as corpora
from tools.train.text.language import stream

TARGET = "mmspec/text-14m"
"""The target of most shipped heads."""
CODE, PROSE = 0.75, 0.25
"""Shares of the two kinds of text; prose is scarce, and a target that reads it is less sure."""
PROMPTED = (0.8, 0.2)
"""Shares of the two among the prompts that the target continues."""
RECIPES: Mapping[str, DrafterRecipe] = {
    "text-14m-eagle3": DrafterRecipe(steps=1200, intermediate=512, hard=0.1),
    "ssm-5m-eagle3": DrafterRecipe(steps=1200, intermediate=512, hard=0.1),
    "text-14m-mtp": DrafterRecipe(steps=500),
    "text-14m-medusa": DrafterRecipe(steps=800, depth=4, learning_rate=8e-3, own_output=False),
}
"""The recipe of every head that ships, by its name without `mmspec/`. The EAGLE-3 heads that ship have 4 heads of 64
numbers and one of keys, where a new run takes the sizes of the target's layers."""
WINDOWS = 48
"""Most held-out windows of each kind that are counted."""


def train_shipped_head(
    out: Path,
    work: Path,
    prose_files: list[Path],
    recipe: DrafterRecipe = RECIPES["text-14m-eagle3"],
    device: str = "cpu",
    say: Callable[[str], None] = print,
    kind: DrafterKind = "eagle3",
    target: str = TARGET,
) -> None:
    """Run the recipe, or the rest of it, and write `<out>/<target>-<kind>`.

    Args:
        out: Folder that receives the head.
        work: Folder for checkpoints; delete it to start anew.
        prose_files: Plain text beside the standard library.
        recipe: Lengths and loss.
        device: Where to train.
        say: Receives lines of progress.
        kind: The kind of head.
        target: The head's target.

    Raises:
        ValueError: There is no such prose; `work` is another run's, or of another recipe; or training cannot go on.
    """
    corpus = corpora.load(prose_files)
    model, tokenizer = load_model(target, device).float(), load_tokenizer(target)
    code, prose = (stream(tokenizer, documents) for documents in (corpus.code, corpus.prose))
    held = {}
    for text, documents in (("code", corpus.held_out_code), ("prose", corpus.held_out_prose)):
        units = stream(tokenizer, documents)
        windows = units[: len(units) // recipe.context * recipe.context].view(-1, recipe.context)
        held[text] = Batch.whole(windows[:WINDOWS])
    beginnings = [Stream(units, share) for units, share in zip((code, prose), PROMPTED, strict=True)]
    prompts = Texts(beginnings, AT_ONCE, GIVEN, recipe.seed + 1).batch_at(0).ids
    data = Data([Stream(code, CODE), Stream(prose, PROSE)], held, prompts)
    folder = out / name_of(target, kind)
    train_drafter(kind, model, tokenizer, data, recipe=recipe, folder=folder, work=work, name=target, say=say)


def recipe_of(target: str, kind: DrafterKind) -> DrafterRecipe:
    """The recipe of a target's shipped head.

    Raises:
        ValueError: It has none of that kind.
    """
    name = name_of(target, kind)
    if name not in RECIPES:
        raise ValueError(unknown("shipped head", name, RECIPES))
    return RECIPES[name]


def name_of(target: str, kind: DrafterKind) -> str:
    """The name of a target's shipped head, without `mmspec/`."""
    return f"{target.rpartition('/')[2]}-{kind}"
