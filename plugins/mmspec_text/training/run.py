"""A run of training: the target's own text, the drafter, and the folder that is written at the end.

A run resumes where it stopped: what the target wrote is kept in the work folder, and so are the last weights. The
drafter's folder is written, whole, when its training is complete.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.files import save_whole
from mmspec.hosts.own_target import own_target
from mmspec.training.work import cached, claimed, digest
from mmspec_text.training.data import Data, halves
from mmspec_text.training.draft_model import trained_model
from mmspec_text.training.eagle import begun_eagle
from mmspec_text.training.heads import Begin, trained_head
from mmspec_text.training.medusa import begun_medusa
from mmspec_text.training.mtp import begun_mtp
from mmspec_text.training.recipe import DrafterKind, DrafterRecipe
from mmspec_text.training.texts import CONTINUED, Stream, Texts, continued
from mmspec_text.training.trained import Training

HEADS: Mapping[str, Begin] = {"eagle3": begun_eagle, "mtp": begun_mtp, "medusa": begun_medusa}
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
        ValueError: The target does not read sequences of that length; `work` is another run's, or of another recipe; or
            training cannot go on.
    """
    model.requires_grad_(False)
    reach = own_target(model).context
    if reach is not None and recipe.context > reach:
        raise ValueError(f"the target reads {reach} tokens, and a sequence has {recipe.context} (context)")
    of = digest([*(stream.units for stream in data.streams), *data.held.values(), data.prompts])
    with claimed(work, asdict(recipe) | {"kind": kind, "target": name, "data": of}):
        streams, held = _with_own(model, data, recipe, reach, work, say)
        say(f"training on {sum(len(stream.units) for stream in streams):,} tokens")
        texts = Texts(streams, recipe.batch, recipe.context, recipe.seed, model.device)
        training = Training(model, tokenizer, name, texts, held, recipe, work / "drafter", say)
        done = trained_head(HEADS[kind], training) if kind in HEADS else trained_model(training)
        facts = {"kind": kind, "target": name, **done.facts, "recipe": asdict(recipe)}

        def write(side: Path) -> None:
            done.write(side)
            (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

        save_whole(folder, write)
        say(f"{folder.name}: {facts['parameters']:,} parameters; held out: {json.dumps(facts['held_out'])}")


def _with_own(
    model: Any, data: Data, recipe: DrafterRecipe, reach: int | None, work: Path, say: Callable[[str], None]
) -> tuple[list[Stream], Mapping[str, Tensor]]:
    """The streams, with what the target writes; and the held-out windows."""
    if not len(data.prompts):
        return list(data.streams), data.held
    say(f"the target writes {len(data.prompts)} texts")
    new = CONTINUED if reach is None else min(CONTINUED, reach - data.prompts.shape[1])
    own = cached(
        work / "generated.pt",
        (data.prompts,),
        lambda: continued(model, data.prompts, new, recipe.temperature, recipe.seed),
    )
    held = data.held
    if not held:
        own, windows = halves(own, recipe.context, "what the target wrote")
        held = {"own": windows}
    others = sum(stream.share for stream in data.streams)
    share = recipe.own_share * others / (1 - recipe.own_share) if others and recipe.own_share < 1 else 1.0
    return [*data.streams, Stream(own, share)], held
