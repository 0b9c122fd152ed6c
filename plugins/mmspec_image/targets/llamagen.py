"""LlamaGen (arXiv 2406.06525) as a target; under guidance one logical row is two physical rows with one verdict."""

import copy
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from mmspec.core.hidden import FINAL, Lent
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.buffer_cache import captured_shape
from mmspec.hosts.devices import awake, hooks_of
from mmspec.hosts.guidance import GuidedCache, GuidedTarget
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.raster import Raster
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.specs import LLAMAGEN


class LlamaGenTarget(GuidedTarget):
    """Codes of a picture in raster order."""

    offers = LLAMAGEN.offers

    def __init__(self, model: LlamaGenTransformer) -> None:
        self.model = model
        self.vocab: int | None = model.config.vocab_size
        self.context = model.cells
        self.grid = model.config.grid
        self.raster = Raster(model, model.logits)

    @property
    def codebook(self) -> Tensor:
        """Vectors of codes, `[vocab, width]`, by which relaxed rules compare: the VQ's entries where a pipeline holds
        transformer and VQ, else the transformer's embeddings.
        """
        if self.model.entries is not None:
            return self.model.entries
        table = self.model.tok_embeddings
        with awake(self.model, table):
            return table.weight.detach().clone() if hooks_of(self.model) else table.weight.detach()

    def layers(self) -> int:
        return len(self.model.layers)

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.dim)

    def with_hidden(self, boundaries: Sequence[int]) -> "LlamaGenTarget":
        """This target, with outputs that carry the states behind its final norm."""
        if tuple(boundaries) != (FINAL,):
            raise ValueError(
                f"LlamaGen gives heads the state behind its final norm ({FINAL}) alone, and not those at "
                f"{', '.join(map(str, boundaries)) or 'no boundary'}: heads of EAGLE-1 draft for it"
            )
        other = copy.copy(self)
        other.raster = Raster(self.model, self.model.logits, self.model.norm)
        return other

    def lend(self) -> Lent:
        """See `Lends`; refuses offloaded weights."""
        model, config = self.model, self.model.config
        if hooks_of(model):
            raise ValueError("a trained head reads the target's embedding and output layer, which are offloaded")
        return Lent(
            model.tok_embeddings,
            model.output,
            model.device,
            model.dtype,
            before=config.cls_token_num,
            rotary=model.positions,
        )

    def _begin(self, inputs: Condition, limit: int, width: int, fixed: bool = False) -> Prefill:
        if limit > self.context:
            raise ValueError(f"a picture of this model has {self.context} codes, {limit} were asked for")
        cache, passed = self.raster.start(inputs, limit, width, fixed)
        none = torch.zeros(cache.rows, 0, dtype=torch.int64, device=passed.scores.device)
        prefill = Prefill(cache, cache.output(passed.scores), none, none.sum(1), cache.beside(passed.states))
        return self.raster.begun(cache, prefill)

    def verify(self, cache: GuidedCache, draft: Draft, first: int = 0) -> TargetOutput:
        return cache.output(*self.raster.verify(cache, draft, first))

    def renew_null(self, cache: GuidedCache, null: Tensor, null_mask: Tensor | None, codes: Tensor) -> None:
        self.raster.renew_null(cache, null, null_mask, codes)

    def ready(self, cache: GuidedCache, nodes: int) -> AbstractContextManager[None]:
        return self.raster.ready(cache, nodes)

    def forward(self, cache: GuidedCache, draft: Draft, first: int = 0) -> TargetOutput:
        return cache.output(*self.raster.forward(cache, draft, first))

    def capture_key(self, cache: GuidedCache) -> Hashable:
        return captured_shape(self.model, cache.slots, cache.slots.most), self.raster.read is None

    def held(self, cache: GuidedCache, nodes: int) -> GuidedCache:
        return self.raster.held(cache)

    def expect(self, cache: GuidedCache, index: TreeIndex) -> None:
        """Does nothing: the model has no recurrent layers."""
