"""`ChameleonPipeline`: text in, pictures out, with Chameleon, Anole or Lumina-mGPT of transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import VQModel
from torch import Tensor
from transformers import ProcessorMixin

from mmspec.api.pipeline import Pipeline
from mmspec.api.stored import Stored
from mmspec.kits.pictures.arguments import Sampling
from mmspec_image.constraint import GridConstraint, chameleon_grid, lumina_size
from mmspec_image.language_pipeline import Ids, WrittenPipeline
from mmspec_image.models.chameleon import ChameleonForImages
from mmspec_image.official.vq import vq_at, vq_inside
from mmspec_image.sampling import AUTHORS


class ChameleonPipeline(WrittenPipeline):
    """Draws pictures with a model of the Chameleon family (arXiv 2405.09818), many codes a pass.

    Chameleon and Anole draw pictures of one size. Lumina-mGPT (`sized=True`) reads the size in the prompt and ends
    every row. Without a negative prompt, guidance leads away from a picture without words, as in the published code:
    from the begin of a text and of a picture, or, for Lumina-mGPT, from the begin of a picture and its size.

    Args:
        model: The model.
        processor: Its processor.
        vq: The autoencoder of its codes, with `lookup_from_codebook`. transformers' Chameleon has no decoder:
            `from_pretrained` takes a folder of one, or makes it of the decoder that some files have beside the model.
        sized: Whether the prompt has the picture's size, and rows have row ends.

    Raises:
        ValueError: The autoencoder does not fit the model.
    """

    model_cpu_offload_seq = "model->vq"
    loads = ChameleonForImages

    def __init__(self, model: ChameleonForImages, processor: ProcessorMixin, vq: VQModel, sized: bool = False) -> None:
        Pipeline.__init__(self)
        self.register_modules(model=model, processor=processor, vq=vq)
        self.register_to_config(sized=sized)
        self.fit()

    def fit(self) -> None:
        own, of = self.vq.config.num_vq_embeddings, self.model.config.vq_config.num_embeddings
        if own != of:
            raise ValueError(f"these parts do not fit each other: the model draws {of} codes, the VQ has {own}")
        if not self.vq.config.lookup_from_codebook:
            raise ValueError("the VQ is to look up codes itself: make it with VQModel(lookup_from_codebook=True)")

    @classmethod
    def _parts(
        cls, stored: Stored | None, name: str, dtype: torch.dtype, given: dict[str, Any]
    ) -> tuple[Stored | None, dict[str, Any]]:
        if "sized" in given:
            sized = str(given["sized"]).lower()  # a text on the command line
            if sized not in ("true", "false"):
                raise ValueError(f"sized is true or false, not {given['sized']!r}")
            given["sized"] = sized == "true"
        at = given.get("vq") or Path(name) / "vq"
        vq = vq_inside(name, dtype) if "vq" not in given and not Path(at).is_dir() else vq_at(at, dtype)
        if vq is None:
            raise ValueError(
                f"{name} has no autoencoder, and transformers' Chameleon decodes no codes: give vq=, a folder of "
                "diffusers' VQModel"
            )
        return super()._parts(stored, name, dtype, {**given, "vq": vq})

    @property
    def sampling(self) -> Sampling:
        return AUTHORS["Lumina-mGPT" if self.config.sized else "Chameleon, Anole"]

    @property
    def default_size(self) -> tuple[int, int]:
        cells = self.model.config.vq_config.resolution // self.factor
        return cells, cells

    def ids_of(self, captions: Sequence[str]) -> Ids:
        height, width = (cells * self.factor for cells in self.size)
        asking = f"Generate an image of {width}x{height} according to the following prompt:\n" * self.config.sized
        said = [asking + caption for caption in captions]  # Lumina-mGPT is told the size in words, too
        found = self.processor(text=said, padding=True, padding_side="left", return_tensors="pt")
        header = self._header().expand(len(found["input_ids"]), -1)
        ids = torch.cat([found["input_ids"], header], 1)
        return Ids(ids, torch.cat([found["attention_mask"], torch.ones_like(header)], 1))

    def null_ids(self, ids: Ids) -> Ids:
        header = self._header()
        if not self.config.sized:
            begin = self.processor.tokenizer.bos_token_id
            header = header if begin is None else torch.cat([header.new_full((1, 1), begin), header], 1)
        return Ids(header, torch.ones_like(header)).repeated(len(ids.ids))

    def constraint_of(self, ids: Tensor) -> GridConstraint:
        if not self.config.sized and self.size != self.default_size:
            height, width = (cells * self.factor for cells in self.default_size)
            raise ValueError(
                f"this model draws {height} × {width} pixels; only Lumina-mGPT reads a size in the prompt (sized=True)"
            )
        return chameleon_grid(self.model, ids, *self.size)

    def codes_of(self, units: Tensor) -> Tensor:
        return self.model.codes_of(units)

    def _header(self) -> Tensor:
        """`[1, id]`: what stands between the words and the picture."""
        names = self.model.config.vocabulary_map
        sizes = [lumina_size(cells) for cells in self.size] if self.config.sized else []
        missing = [name for name in sizes if name not in names]
        if missing:
            raise ValueError(f"the model's vocabulary map has no {missing[0]}: it draws no picture of that size")
        return torch.tensor([[names[name] for name in ("<racm3:break>", *sizes)]])
