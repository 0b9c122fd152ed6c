"""Recipes `text-eagle3` and `text-ppd`: heads and prompt tokens of shipped models, trained on what their target learnt.

Beside these texts they read what the target writes itself. What is held out is what was held out from the target.
"""

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.registry.suggest import unknown
from mmspec_text.training.data import Data
from mmspec_text.training.recipe import KINDS_OWN, DrafterKind, DrafterRecipe
from mmspec_text.training.run import train_drafter
from mmspec_text.training.texts import Batch, Stream, Texts
from mmspec_text.training.written import AT_ONCE, GIVEN
from tools.train.text import corpus as corpora
from tools.train.text.language import stream

TARGETS = ("mmspec/text-14m", "mmspec/ssm-5m")
"""The targets of the shipped heads; prompt tokens ship for the first."""
CODE, PROSE = 0.75, 0.25
"""Shares of the two kinds of text; prose is scarce, and a target that reads it is less sure."""
PROMPTED = (0.8, 0.2)
"""Shares of the two among the prompts that the target continues."""
RECIPE = DrafterRecipe(steps=1200, intermediate=512, hard=0.1)
"""The shipped heads have 4 heads of 64 numbers and one of keys; a new run takes the sizes of the target's layers."""
PPD = DrafterRecipe(**{**KINDS_OWN["ppd"], "steps": 160, "batch": 4, "context": 256, "anchors": 16})
"""Three prompt tokens, as in the paper; every step costs a pass through the whole target, and back."""
WINDOWS = 48
"""Most held-out windows of each kind that are counted."""


def train_shipped_head(
    out: Path,
    work: Path,
    prose_files: list[Path],
    recipe: DrafterRecipe = RECIPE,
    device: str = "cpu",
    say: Callable[[str], None] = print,
    target: str = TARGETS[0],
    kind: DrafterKind = "eagle3",
) -> None:
    """Run the recipe, or the rest of it, and write `<out>/<target>-<kind>`.

    Args:
        out: Folder that receives the head.
        work: Folder for checkpoints; delete it to start anew.
        prose_files: Plain text beside the standard library.
        recipe: Lengths and loss.
        device: Where to train.
        say: Receives lines of progress.
        target: The head's target.
        kind: A head, or prompt tokens.

    Raises:
        ValueError: No shipped head has such a target; there is no such prose; `work` is another run's, or of another
            recipe; or training cannot go on.
    """
    if target not in TARGETS:
        raise ValueError(unknown("target of a shipped head", target, TARGETS))
    model, tokenizer = load_model(target, device).float(), load_tokenizer(target)
    data = learnt_data(tokenizer, corpora.load(prose_files), recipe)
    folder = out / name_of(target, kind)
    train_drafter(kind, model, tokenizer, data, recipe=recipe, folder=folder, work=work, name=target, say=say)


def learnt_data(tokenizer: PreTrainedTokenizerBase, corpus: corpora.Corpus, recipe: DrafterRecipe) -> Data:
    """What shipped models learned, with what was held out from them, and beginnings that the target continues."""
    code, prose = (stream(tokenizer, documents) for documents in (corpus.code, corpus.prose))
    held = {}
    for text, documents in (("code", corpus.held_out_code), ("prose", corpus.held_out_prose)):
        units = stream(tokenizer, documents)
        windows = units[: len(units) // recipe.context * recipe.context].view(-1, recipe.context)
        held[text] = Batch.whole(windows[:WINDOWS])
    beginnings = [Stream(units, share) for units, share in zip((code, prose), PROMPTED, strict=True)]
    prompts = Texts(beginnings, AT_ONCE, GIVEN, recipe.seed + 1).batch_at(0).ids
    return Data([Stream(code, CODE), Stream(prose, PROSE)], held, prompts)


def name_of(target: str, kind: DrafterKind = "eagle3") -> str:
    """The name of a target's shipped head, without `mmspec/`."""
    return f"{target.rpartition('/')[2]}-{kind}"
