"""A run of training: the target's own text, the drafter, and the folder that is written at the end.

A run resumes where it stopped: what the target wrote is kept in the work folder, and so are the last weights. The
drafter's folder is written, whole, when its training is complete.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from mmspec.files import save_whole
from mmspec.hosts.draft_models import own_target
from mmspec.training.work import claimed, digest
from mmspec_text.training.data import Data
from mmspec_text.training.dflash import begun_dflash
from mmspec_text.training.draft_model import trained_model
from mmspec_text.training.eagle import begun_eagle
from mmspec_text.training.heads import Begin, trained_head
from mmspec_text.training.medusa import begun_medusa
from mmspec_text.training.mtp import begun_mtp
from mmspec_text.training.own_text import with_own
from mmspec_text.training.recipe import DrafterKind, DrafterRecipe
from mmspec_text.training.texts import Texts
from mmspec_text.training.trained import Training

HEADS: Mapping[str, Begin] = {"eagle3": begun_eagle, "mtp": begun_mtp, "medusa": begun_medusa, "dflash": begun_dflash}
"""The kinds of head."""


def train_drafter(
    kind: DrafterKind,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    recipe: DrafterRecipe,
    folder: Path,
    work: Path,
    name: str,
    say: Callable[[str], None] = print,
) -> None:
    """Run a recipe, or the rest of it.

    Args:
        kind: What to train.
        model: The target, in float32; its weights are frozen, those that a head shares among them.
        tokenizer: The target's.
        data: What to train on.
        recipe: Lengths and loss.
        folder: Receives the finished drafter; replaced if it exists.
        work: Folder for checkpoints; delete it to start anew.
        name: The target's name.
        say: Receives lines of progress.

    Raises:
        ValueError: The kind of drafter has not all of the recipe; the target reads no sequences of that length; `work`
            is another run's, or of another recipe; or training cannot go on.
    """
    recipe.refuse_for(kind)
    model.requires_grad_(False)
    reach = own_target(model).context
    if reach is not None and recipe.context > reach:
        raise ValueError(f"the target reads {reach} tokens, and a sequence has {recipe.context} (context)")
    held_parts = [part for batch in data.held.values() for part in (batch.ids, batch.counted)]
    of = digest([*(part for source in data.sources for part in source.parts), *held_parts, data.prompts])
    template = {"template": dict(data.template)} if data.template else {}
    with claimed(work, asdict(recipe) | {"kind": kind, "target": name, "data": of, **template}):
        sources, held = with_own(model, tokenizer, data, recipe, reach, work, say)
        say(f"training on {sum(map(len, sources)):,} tokens")
        texts = Texts(sources, recipe.batch, recipe.context, recipe.seed, model.device)
        training = Training(model, tokenizer, name, texts, held, recipe, work / "drafter", say)
        done = trained_head(HEADS[kind], training) if kind in HEADS else trained_model(training)
        facts = {"kind": kind, "target": name, **done.facts, "recipe": recipe.of(kind), **template}

        def write(side: Path) -> None:
            done.write(side)
            (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

        save_whole(folder, write)
        say(f"{folder.name}: {facts['parameters']:,} parameters; held out: {json.dumps(facts['held_out'])}")
