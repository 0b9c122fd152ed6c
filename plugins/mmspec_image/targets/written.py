"""Language models of transformers that write pictures into texts, as targets: Emu3 and the Chameleon family.

`mmspec.kits.pictures` says what a written picture is, and what a raster transformer is instead.

Both are the text target, whose ids may be codes of a picture. Positions count units, so that nothing but the choice of
methods differs from a text. The size of a picture comes with the call, as a constraint (`mmspec_image.constraint`);
guidance is `generate`'s own.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import Emu3ForConditionalGeneration, PreTrainedModel

from mmspec.hosts import prompt
from mmspec.hosts.attention import model_lock
from mmspec.hosts.devices import awake, device_of
from mmspec.hosts.guidance import refuse_renewal, renew_null
from mmspec.hosts.memory import refuse_length
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec_image.models.chameleon import ChameleonForImages
from mmspec_image.models.grid_language import BODIES
from mmspec_image.specs import CHAMELEON, EMU3, GRID_LANGUAGE


class WrittenTarget(TransformersTarget):
    """Text, and pictures in it; a subclass names the class of its models."""

    of: ClassVar[type[PreTrainedModel] | tuple[type[PreTrainedModel], ...]]

    def __init__(self, model: Any, drafting: bool = False) -> None:
        if not isinstance(model, self.of):
            kinds = self.of if isinstance(self.of, tuple) else (self.of,)
            named = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"{type(self).__name__} takes a {named}, not a {type(model).__name__}")
        super().__init__(model, drafting)

    @property
    def code_ids(self) -> Tensor:
        """The ids of the VQ's codes, `[code]`, in the order of its entries; ids of words are left out."""
        mapping = self.model.model.vocabulary_mapping.img2bpe
        return torch.tensor([mapping[code] for code in sorted(mapping)], device=device_of(self.model))

    @property
    def codebook(self) -> Tensor:
        """The VQ's entries of the codes, `[code, width]`."""
        table = self.model.model.vqmodel.quantize.embedding
        with awake(self.model, table):
            return table.weight.detach()[sorted(self.model.model.vocabulary_mapping.img2bpe)]

    @property
    def code_embeddings(self) -> Tensor:
        """The model's embeddings of the codes, `[code, width]`."""
        table = self.model.get_input_embeddings()
        with awake(self.model, table):
            return table.weight.detach()[self.code_ids.to(table.weight.device)]

    def renew_null(self, cache: TransformersTargetCache, null: Tensor, null_mask: Tensor | None, units: Tensor) -> None:
        """Replace what guidance leads away from, by ids `[batch, any]`, padded on the left, from the next round on.
        Refuses a call that began without guidance, and prompts that are too long for what may follow.
        """
        guidance = cache.guidance
        refuse_renewal(guidance, len(null))
        ids, mask = prompt.read({"input_ids": null, "attention_mask": null_mask}, self.model_info.vocab)
        refuse_length(self.model_info, self.context, int(mask.sum(1).max()), cache.behind)
        with model_lock(self.model):
            renew_null(guidance, self.model_info, ids, mask, units, cache.passes, cache.passes)
        cache.slots, cache.prompts = guidance.slots, guidance.given

    def grid_of(self, inputs: Any) -> None:
        """None: the call's constraint has the grid, and a call without one writes a text."""


class Emu3Target(WrittenTarget):
    """Emu3 (arXiv 2409.18869)."""

    of, offers = Emu3ForConditionalGeneration, EMU3.offers


class ChameleonTarget(WrittenTarget):
    """Chameleon (arXiv 2405.09818), Anole, Lumina-mGPT."""

    of, offers = ChameleonForImages, CHAMELEON.offers


class GridLanguageTarget(WrittenTarget):
    """Liquid, SimpleAR, Emu3.5, Lumina-mGPT 2.0. The VQ is no part of the model: its codes are looked up by what the
    model itself reads of them.
    """

    of, offers = tuple(BODIES.values()), GRID_LANGUAGE.offers

    @property
    def code_ids(self) -> Tensor:
        of = self.model.config.grid_language
        return torch.arange(of["first"], of["first"] + of["codes"], device=device_of(self.model))

    @property
    def codebook(self) -> Tensor:
        return self.code_embeddings
