"""Language models of transformers that write pictures into texts, as targets: Emu3 and the Chameleon family.

`mmspec.kits.pictures` says what a written picture is, and what a raster transformer is instead.

Both are the text target, whose ids may be codes of a picture. Positions count units, so that nothing but the choice of
methods differs from a text. The size of a picture comes with the call, as a constraint (`mmspec_image.constraint`);
guidance is `generate`'s own.
"""

import operator
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Emu3ForConditionalGeneration, PreTrainedModel

from mmspec.hosts import prompt
from mmspec.hosts.attention import model_lock
from mmspec.hosts.devices import awake, device_of
from mmspec.hosts.guidance import refuse_renewal, renew_null
from mmspec.hosts.memory import refuse_length
from mmspec.hosts.model_info import ModelInfo, unwrapped
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec.registry import TargetSpec, installed
from mmspec_image.models.chameleon import ChameleonForImages
from mmspec_image.models.grid_language import BODIES
from mmspec_image.specs import CHAMELEON, EMU3, GRID_LANGUAGE, OWN_PICTURES


class WrittenTarget(TransformersTarget):
    """Text, and pictures in it; a subclass names the class of its models."""

    of: ClassVar[type[PreTrainedModel] | tuple[type[PreTrainedModel], ...]]

    def __init__(self, model: Any, drafting: bool = False, model_info: ModelInfo | None = None) -> None:
        if not isinstance(model, self.of):
            kinds = self.of if isinstance(self.of, tuple) else (self.of,)
            named = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"{type(self).__name__} takes a {named}, not a {type(model).__name__}")
        super().__init__(model, drafting, model_info=model_info)

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


class OwnPicturesTarget(WrittenTarget):
    """Any decoder of transformers that writes codes of a VQ, both named by the user: `enable(model, vq=…, codes=…)`.

    `vq` has its entries in `quantize.embedding`, as in diffusers and the code of most authors, or is the table itself,
    `[code, width]`. Refuses a model that is no language model, or that knows its codes itself; a VQ without a table;
    and ids that the model does not have, that are there twice, or of which there are not as many as entries.
    """

    of, offers = PreTrainedModel, OWN_PICTURES.offers

    def __init__(self, model: Any, drafting: bool = False, *, vq: Any, codes: Iterable[int]) -> None:
        own, model = _language_target(model), unwrapped(model)
        self._vq, self._entries = vq, _entries_of(vq)
        ids = model.config.get_text_config(decoder=True).vocab_size
        self._codes = _checked_codes(codes, self._entries.num_embeddings, ids)
        language = own.load()(model, drafting)  # which brings the tree operations of recurrent layers
        super().__init__(model, drafting, language.model_info)
        self.offers = language.offers | {"window", "codebook"}

    @property
    def code_ids(self) -> Tensor:
        return torch.tensor(self._codes, device=device_of(self.model))

    @property
    def codebook(self) -> Tensor:
        with awake(self._vq, self._entries):
            return self._entries.weight.detach().to(device_of(self.model))


def _language_target(model: Any) -> TargetSpec:
    found = installed().target_for(model)
    if found is None or "text" not in found.offers or "codebook" in found.offers:
        known = found is not None and "codebook" in found.offers
        why = "knows its codes itself: leave them out" if known else "is none"
        raise ValueError(f"vq= and codes= are for language models of transformers; a {type(model).__name__} {why}")
    return found


def _entries_of(vq: Any) -> nn.Embedding:
    if isinstance(vq, Tensor) and vq.dim() == 2:
        return nn.Embedding.from_pretrained(vq)
    found = dict(vq.named_modules()).get("quantize.embedding") if isinstance(vq, nn.Module) else None
    if not isinstance(found, nn.Embedding):
        raise TypeError(
            "vq= is a VQ with its entries in quantize.embedding, such as a VQModel of diffusers, or the table of them, "
            f"a tensor [code, width]; a {type(vq).__name__} has none"
        )
    return found


def _checked_codes(codes: Any, entries: int, vocab: int) -> list[int]:
    """The ids of codes as integers."""
    example = f"such as range(first, first + {entries})"
    try:
        ids = [*map(operator.index, codes)]
    except TypeError:
        raise TypeError(f"codes= is the model's ids of the VQ's codes, {example}; not {codes!r}") from None
    if len(ids) != entries or len(set(ids)) != len(ids):
        said = f"{len(ids)} ids, {len(set(ids))} of them different"
        raise ValueError(f"the VQ has {entries} entries, and codes= has {said}; it names one for each, {example}")
    if min(ids) < 0 or max(ids) >= vocab:
        raise ValueError(f"codes= goes from {min(ids)} to {max(ids)}, and the model's ids from 0 to {vocab - 1}")
    return ids
