"""The README of a trained drafter: what it is, for which target, who reads it, and what it did on held-out text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from mmspec.registry.printable import printable
from mmspec_text.training.recipe import DrafterKind, DrafterRecipe

KINDS: Mapping[DrafterKind, tuple[str, str]] = {
    "eagle3": ("eagle", "An EAGLE-3 head in the format of speculators, which vLLM reads, too."),
    "mtp": ("mtp", "A layer for multi-token prediction, under DeepSeek-V3's keys."),
    "medusa": ("medusa", ""),
    "dflash": ("dflash", "A DFlash head in its authors' layout."),
    "ppd": ("ppd", "Prompt tokens in their authors' layout."),
    "pard": ("pard", "A draft model that fills in masks, as transformers stores a model."),
    "model": ("draft-model", "A draft model, as transformers stores one."),
}
"""The method that drafts with each kind, and what its folder is."""
OWN, SHARED = (
    "Medusa heads in their authors' layout; vLLM's has no output layers of the heads' own (--no-own-output).",
    "Medusa heads over the target's output layer, in vLLM's layout.",
)


def layout_of(kind: DrafterKind, recipe: DrafterRecipe) -> str:
    """What the folder of a trained drafter is, in a sentence."""
    return KINDS[kind][1] or (OWN if recipe.own_output else SHARED)


def readme(kind: DrafterKind, recipe: DrafterRecipe, target: str, facts: Mapping[str, Any]) -> ModelCard:
    """The README of a drafter; `facts` are those of its `training.json`."""
    public = None if Path(target).exists() else target  # a folder of this machine is nobody else's
    data = ModelCardData(library_name="mmspec", tags=["speculative-decoding"], base_model=public)
    method = KINDS[kind][0]
    held = "\n".join(f"- {printable(name)}: `{json.dumps(counted)}`" for name, counted in facts["held_out"].items())
    return ModelCard(
        f"---\n{data.to_yaml()}\n---\n\n# A drafter for {printable(target)}\n\n"
        f"{layout_of(kind, recipe)} It has {facts['parameters']:,} parameters. `mmspec train drafter --kind {kind}` "
        "made it, by the recipe in `training.json`.\n\n"
        f'    with mmspec.enable(model, "{method}", drafter="FOLDER"):  # this folder, or its name on the hub\n'
        "        model.generate(...)\n\n"
        f"Counted on held-out text, which is no benchmark (`mmspec bench text --help`):\n\n{held}\n"
    )
