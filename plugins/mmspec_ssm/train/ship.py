"""What was trained, as a folder that transformers reads, with its facts beside the weights."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mmspec.kits.text.corpus import Corpus
from mmspec.kits.text.training import facts_of, held_out_streams, ship
from mmspec.training.work import claimed, digest
from mmspec_ssm.train.recipe import SsmRecipe, train

NAME = "ssm-5m"


def train_and_ship(
    corpus: Corpus, recipe: SsmRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    """Train, and write `<out>/ssm-5m` in half precision.

    Args:
        corpus: Text to learn, and text held out.
        recipe: Lengths.
        out: Folder that receives the finished model.
        work: Folder for checkpoints; delete it to start anew.
        device: Where to train.
        say: Where progress lines go.

    Raises:
        ValueError: `work` is another run's, or of another recipe; or training cannot go on.
    """
    with claimed(work, asdict(recipe) | {"data": digest(corpus.documents)}):
        model, tokenizer = train(corpus, recipe, work, device, say)
        facts = facts_of(model, held_out_streams(tokenizer, corpus), recipe.context, asdict(recipe))
        ship(model, tokenizer, out / NAME, facts, say)
