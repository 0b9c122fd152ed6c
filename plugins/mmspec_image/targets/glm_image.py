"""GLM-Image of transformers as a target: a preview of the picture, the picture, and an end code.

The language model of GLM-Image writes codes whose positions are stage, row and column. Its own forward takes them from
what it remembers of the prompt and from the cache's length, which cannot say where the nodes of a draft lie; so each of
our passes is given positions from the picture's `GridSpec`, compared in every call with stock `generate`'s.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GlmImageForConditionalGeneration

from mmspec.core.types import Prefill
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.stock_generate import StockGenerate
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec_image.specs import GLM_IMAGE

FAR = 100.0  # the distance between special codes, in the codebook, where entries have the length 1


class GlmImageTarget(TransformersTarget):
    """Codes of a preview and of a picture; ids and codes share a table, and the output layer has codes alone."""

    offers = GLM_IMAGE.offers

    def __init__(self, model: GlmImageForConditionalGeneration, drafting: bool = False) -> None:
        if not isinstance(model, GlmImageForConditionalGeneration):
            raise TypeError(f"GlmImageTarget takes a GlmImageForConditionalGeneration, not a {type(model).__name__}")
        facts = replace(ModelInfo.of(model), vocab=model.lm_head.out_features, placed=True)
        with forgetful(model):
            super().__init__(model, drafting, model_info=facts)

    @property
    def codebook(self) -> Tensor:
        """The VQ's entries, `[vocab, width]`; special codes, which no picture has, are far from all others."""
        entries = torch.nn.functional.normalize(self.model.model.vqmodel.quantize.embedding.weight.detach(), dim=-1)
        special = torch.arange(1, self.model_info.vocab - len(entries) + 1, device=entries.device)
        apart = torch.nn.functional.pad(special[:, None].to(entries.dtype) * FAR, (entries.shape[1], 0))
        return torch.cat([torch.nn.functional.pad(entries, (0, 1)), apart])

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """Prefill a prompt as the processor makes it: `input_ids`, `attention_mask`, `image_grid_thw`. Refuses a
        picture in the prompt, and several sizes.
        """
        return super().start(self._read(inputs, limit), limit, width)

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        return super().start_fixed(self._read(inputs, limit), limit, width)

    def grid_of(self, inputs: Any) -> GridSpec:
        """The stages that `image_grid_thw [row * stage, 3]` names, the picture's before the preview's."""
        grids, rows = inputs.get("image_grid_thw"), len(inputs["input_ids"])
        if grids is None:
            raise ValueError("GLM-Image needs image_grid_thw=, the rows and columns of picture and preview")
        if grids.dim() != 2 or grids.shape[1] != 3 or not len(grids) or len(grids) % rows:
            raise ValueError(f"image_grid_thw has the shape {list(grids.shape)} where there are {rows} prompts")
        each = grids.reshape(rows, -1, 3)
        if bool((each != each[:1]).any()):
            raise ValueError("all pictures of a call have one size; make a call for each size")
        stages = tuple(Stage(height, width) for _, height, width in reversed(each[0].tolist()))
        return GridSpec(stages, tail=(-1,))

    def places(self, stock: StockGenerate, inputs: Mapping[str, Any]) -> Tensor:
        grid = self.grid_of(inputs)
        first, relative = stock.ahead(grid.length), grid.positions
        assert first is not None, "the model takes positions"
        places = first[..., :1] + relative[:, None].to(first.device)
        known = min(first.shape[-1], places.shape[-1])
        if not torch.equal(places[..., :known], first[..., :known]):
            raise ValueError(
                "GLM-Image cannot verify drafts exactly in this call, so it is refused: its own generate puts the next "
                f"codes at positions {first[:, 0, :4].T.tolist()}, and a picture of this size has them at "
                f"{places[:, 0, :4].T.tolist()}; disable() first"
            )
        return places

    def _read(self, inputs: Any, limit: int) -> Any:
        if not isinstance(inputs, Mapping):
            raise ValueError("GLM-Image needs a mapping with input_ids and image_grid_thw")
        seen = inputs.get("mm_encoder_outputs") or {}
        if inputs.get("pixel_values") is not None or seen.get("image") is not None:
            raise ValueError(
                "GLM-Image from a picture is not supported: in this release of transformers its own get_image_tokens "
                "fails; leave out the picture"
            )
        grid = self.grid_of(inputs)
        if limit > grid.length:
            *before, last = grid.stages
            raise ValueError(
                f"a picture of {last.height} × {last.width} cells has {grid.length} codes, its preview of "
                f"{sum(stage.height * stage.width for stage in before)} and the end code included; {limit} were asked "
                f"for: use max_new_tokens={grid.length}"
            )
        return inputs


@contextmanager
def forgetful(model: GlmImageForConditionalGeneration) -> Iterator[None]:
    """Inside the block the model has forgotten its last prompt, whose positions it would give to ids without a grid."""
    inner = model.model
    remembered = inner.rope_deltas, inner._cached_decode_position_ids, inner._prefill_len
    inner.rope_deltas = inner._cached_decode_position_ids = inner._prefill_len = None
    try:
        yield
    finally:
        inner.rope_deltas, inner._cached_decode_position_ids, inner._prefill_len = remembered
