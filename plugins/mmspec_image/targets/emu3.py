"""Emu3 (arXiv 2409.18869) of transformers as a target: the text target, whose ids may be codes of a picture.

Positions count units, so that nothing but the choice of methods differs from a text. The size of a picture comes with
the call, as a constraint (`mmspec_image.constraint`); guidance is `generate`'s own.
"""

from typing import Any

from torch import Tensor, nn
from transformers import Emu3ForConditionalGeneration

from mmspec.hosts.target import TransformersTarget
from mmspec_image.specs import EMU3


class Emu3Target(TransformersTarget):
    """Text, and pictures in it.

    Args:
        model: The live model.
        drafting: Whether the model drafts in another target's calls.

    Raises:
        TypeError: The model is no Emu3.
        ValueError: Drafts cannot be verified with this model.
    """

    offers = EMU3.offers
    example = "mmspec_image.grid_example:emu3"

    def __init__(self, model: Any, drafting: bool = False) -> None:
        if not isinstance(model, Emu3ForConditionalGeneration):
            raise TypeError(f"Emu3Target takes an Emu3ForConditionalGeneration, not a {type(model).__name__}")
        super().__init__(model, drafting)

    @property
    def codebook(self) -> Tensor:
        """Vectors of all ids, `[vocab, width]`: the embeddings, since visual ids are some of the words."""
        return nn.functional.normalize(self.model.get_input_embeddings().weight.detach(), dim=-1)

    def grid_of(self, inputs: Any) -> None:
        """None: the call's constraint has the grid, and a call without one writes a text."""
