"""A new EAGLE-3 head for training, and where it goes afterwards."""

from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec_text.training.export import write_head
from mmspec_text.training.heads import NewHead
from mmspec_text.training.new_head import HeadSizes, new_head, usual_boundaries
from mmspec_text.training.recipe import DrafterRecipe


def begun_eagle(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """An EAGLE-3 head; arguments as in `Begin`."""
    boundaries = usual_boundaries(model.config.get_text_config(decoder=True).num_hidden_layers)
    head = new_head(model, boundaries, HeadSizes(recipe.intermediate), ids, recipe.seed)

    def write(folder: Path) -> None:
        write_head(head, boundaries, name, recipe.depth, folder)

    return NewHead(head, boundaries, "layers", write)
