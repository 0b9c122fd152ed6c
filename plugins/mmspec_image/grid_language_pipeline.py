"""`GridLanguagePipeline`: text in, codes of pictures out, with the models of `mmspec_image.models.grid_language`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import VQModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mmspec.api.pipeline import Pipeline
from mmspec.api.stored import Stored, places_of
from mmspec.hosts.loading import architectures, load_as, load_tokenizer
from mmspec.kits.pictures.arguments import Sampling
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec_image.constraint import GridConstraint
from mmspec_image.language_pipeline import Ids, WrittenPipeline
from mmspec_image.models.grid_language import BODIES, GRIDS, LUMINA_SIZES, Grid
from mmspec_image.official.vq import vq_at


class GridLanguagePipeline(WrittenPipeline):
    """Draws pictures with Liquid, SimpleAR, Emu3.5 or Lumina-mGPT 2.0, many codes a pass.

    Without a negative prompt, guidance leads away from what the authors lead away from. Without an autoencoder a call
    gives codes alone: `output_type="latent"`.

    Args:
        model: One of `BODIES`; its configuration says which of `GRIDS` it is.
        processor: Its tokenizer.
        vq: The autoencoder of its codes, where diffusers has it: all but SimpleAR's.

    Raises:
        ValueError: The autoencoder has another number of codes.
    """

    _optional_components: list[str] = ["vq"]  # noqa: RUF012  diffusers' own form
    model_cpu_offload_seq = "model->vq"

    def __init__(self, model: PreTrainedModel, processor: PreTrainedTokenizerFast, vq: VQModel | None = None) -> None:
        Pipeline.__init__(self)
        self.register_modules(model=model, processor=processor, vq=vq)
        self.fit()

    def fit(self) -> None:
        codes, vq = self.model.config.grid_language["codes"], self.vq
        if vq is not None and vq.config.num_vq_embeddings != codes:
            entries = vq.config.num_vq_embeddings
            raise ValueError(f"these parts do not fit each other: the model draws {codes} codes, the VQ has {entries}")

    @classmethod
    def _parts(
        cls, stored: Stored | None, name: str, dtype: torch.dtype, given: dict[str, Any]
    ) -> tuple[Stored | None, dict[str, Any]]:
        model_at, words_at = places_of(stored, name, "model", "processor")
        own = Path(model_at).parent / "vq"
        at = given.get("vq", own if (own / "config.json").is_file() else None)
        given["vq"] = None if at is None else vq_at(at, dtype)
        if "model" not in given:
            kinds = {kind.__name__: kind for kind in BODIES.values()}
            named = architectures(model_at)
            kind = next((kinds[each] for each in named if each in kinds), None)
            if kind is None:
                raise ValueError(f"{model_at} holds none of {', '.join(kinds)}: convert it with mmspec convert")
            given["model"] = load_as(kind, model_at, dtype)
        if "processor" not in given:
            given["processor"] = load_tokenizer(words_at)
        return stored, given

    @property
    def grid(self) -> Grid:
        return GRIDS[self.model.config.grid_language["name"]]

    @property
    def sampling(self) -> Sampling:
        return self.grid.sampling

    @property
    def default_size(self) -> tuple[int, int]:
        return self.grid.size

    @property
    def factor(self) -> int:
        return self.grid.factor

    def ids_of(self, captions: Sequence[str]) -> Ids:
        return self._read([self._written(self.grid.prompt, text) for text in captions])

    def negative_ids(self, words: Sequence[str]) -> Ids:
        return self._read([self._written(self.grid.away or self.grid.prompt, text) for text in words])

    def null_ids(self, ids: Ids) -> Ids:
        null = self._read([self._written(self.grid.null, "")], self.grid.null_begins)
        return null.repeated(len(ids.ids))

    def constraint_of(self, ids: Tensor) -> GridConstraint:
        grid, words = self.grid, self.processor.get_vocab()
        rows, columns = self.size
        if not grid.sizes and self.size != grid.size:
            own = " × ".join(str(cells * grid.factor) for cells in grid.size)
            raise ValueError(f"this model draws {own} pixels")
        if rows % grid.multiple or columns % grid.multiple:
            pixels = grid.multiple * grid.factor
            raise ValueError(f"height and width are multiples of {pixels} pixels for this model")
        ends = tuple(words[word] for word in grid.ends)
        if grid.row_end is None:
            spec = GridSpec((Stage(rows, columns),), ends)
        else:
            spec = GridSpec((Stage(rows, columns, words[grid.row_end], ends[0]),), ends[1:])
        of = self.model.config.grid_language
        return GridConstraint(spec, range(of["first"], of["first"] + of["codes"]), ids.shape[1])

    def refuse_pixels(self) -> None:
        if self.vq is None:
            codes = "output_type='latent', or on the command line -o FILE.safetensors"
            raise ValueError(f"this pipeline has no decoder of its codes; codes alone are made by {codes}")

    def codes_of(self, units: Tensor) -> Tensor:
        return units - self.model.config.grid_language["first"]

    def _written(self, form: str, text: str) -> str:
        rows, columns = self.size
        high, wide = (f"<reserved{LUMINA_SIZES + cells // 4:05d}>" for cells in (rows, columns))
        pixels = {"height": rows * self.factor, "width": columns * self.factor}
        return form.format(text=text, rows=rows, columns=columns, high=high, wide=wide, **pixels)

    def _read(self, texts: Sequence[str], begins: bool = True) -> Ids:
        how = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        found = self.processor(list(texts), add_special_tokens=begins, **how)
        return Ids(found["input_ids"], found["attention_mask"])
