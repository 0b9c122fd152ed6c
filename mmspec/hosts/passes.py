"""One pass of a transformers model over tree nodes: masks, positions, attention.

Two manners. `interface`: the model's attention and masks go through transformers' interfaces, where ours take their
place for the length of the pass. `explicit`: the model computes attention itself and is handed a finished mask. The
self-check finds out which one holds for a model.
"""

import inspect
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.attention import model_lock, tree_attention
from mmspec.hosts.dispatch import Sites, dispatched, sites
from mmspec.hosts.linear import Kernels, kernels, narrow
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache

Manner = Literal["interface", "explicit"]
MANNERS: tuple[Manner, ...] = ("interface", "explicit")


@dataclass(frozen=True)
class Passes:
    """Runs a model over the nodes of drafts.

    Attributes:
        anatomy: The model.
        manner: How masks reach its attention.
    """

    anatomy: Anatomy
    manner: Manner

    @cached_property
    def kernels(self) -> Kernels:
        """What multiplies in narrow passes."""
        return kernels(self.anatomy.model)

    @cached_property
    def sites(self) -> Sites:
        """Where recurrent layers find their operations."""
        return sites(self.anatomy.model, self.anatomy.ops)

    def __call__(
        self,
        cache: SlotCache,
        ids: Tensor,
        index: TreeIndex,
        *,
        first: int = 0,
        valid: Tensor | None = None,
        keep: Tensor | int = 0,
    ) -> Tensor:
        """Logits `[batch, node, vocab]` of the nodes from `first` on, which are written behind the committed units.

        Args:
            cache: The call's cache; nodes before `first` are in its scratch.
            ids: `[batch, node]` of those nodes.
            index: Of the whole draft.
            first: Where `ids` begin; always 0 where layers are recurrent.
            valid: `[batch, node]` bool; other nodes stand where the root does, so that none lies beyond the context.
            keep: As transformers' `logits_to_keep`.
        """
        nodes = ids.shape[1]
        cache.open(first, nodes)
        alone = nodes == 1 and index.is_chain and cache.start is not None and cache.holes is None
        holes = None if cache.holes is None else cache.holes[:, : cache.visible]
        geometry = PassGeometry(cache.length, index.ancestor[:, first:], index.depth, cache.visible, alone, holes)
        arguments: dict[str, Any] = {cache_name(self.anatomy.model): cache, "use_cache": True}
        if names_argument(self.anatomy.model, "logits_to_keep"):
            arguments["logits_to_keep"] = keep
        if accepts_argument(self.anatomy.model, "position_ids"):
            arguments["position_ids"] = self._positions(cache, index.depth[:, first:], valid)
        recurrent = dispatched(self.sites, self.anatomy.ops, cache, index) if cache.recurrent else nullcontext()
        with model_lock(self.anatomy.model), narrow(self.kernels, ids.numel()), recurrent:
            if self.manner == "explicit":
                mask = self._mask(geometry)
                logits: Tensor = self.anatomy.model(input_ids=ids, attention_mask=mask, **arguments).logits
            else:
                with tree_attention(self.anatomy.config, geometry):
                    logits = self.anatomy.model(input_ids=ids, **arguments).logits
        kept = isinstance(keep, Tensor) and "logits_to_keep" not in arguments
        return logits[:, keep] if kept else logits

    def _positions(self, cache: SlotCache, depth: Tensor, valid: Tensor | None) -> Tensor:
        """Position ids of nodes at `depth`: `[batch, node]`, or `[axes, batch, node]`."""
        root = (cache.length + cache.shift)[..., None]
        positions = root + depth if valid is None else torch.where(valid, root + depth, root)
        if not self.anatomy.table or self.anatomy.context is None:
            return positions
        # Rows that ended at the context's end still pass along, one position further on, with nobody reading them.
        return positions.clamp(max=self.anatomy.context - 1)

    def _mask(self, geometry: PassGeometry) -> Tensor:
        """As the model's own attention wants it: a predicate, or a term that is added to scores."""
        if self.anatomy.config._attn_implementation != "eager":
            return geometry.tree
        term = torch.zeros(geometry.tree.shape, dtype=self.anatomy.model.dtype, device=geometry.tree.device)
        return term.masked_fill(~geometry.tree, torch.finfo(term.dtype).min)


def cache_name(model: Any) -> str:
    """What the model's forward calls its cache."""
    return "cache_params" if names_argument(model, "cache_params") else "past_key_values"


def accepts_argument(model: Any, argument: str) -> bool:
    """Whether the model's forward names an argument, or passes on what it does not name."""
    kind: Any = type(model)
    return names_argument(model, argument) or _arguments(kind)[1]


def names_argument(model: Any, argument: str) -> bool:
    """Whether the model's forward names an argument; `generate` passes positions to such models only."""
    kind: Any = type(model)
    return argument in _arguments(kind)[0]


@lru_cache(maxsize=64)
def _arguments(kind: Any) -> tuple[frozenset[str], bool]:
    """Arguments of a class's forward, and whether it takes others, too; every pass asks, so it is looked up once."""
    parameters = inspect.signature(kind.forward).parameters
    return frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())
