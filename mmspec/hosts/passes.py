"""One pass of a transformers model over tree nodes: masks, positions, attention.

There are two manners. `interface`: the model's attention and masks go through transformers' interfaces, where ours are
used for the duration of the pass. `explicit`: the model computes attention itself and is given a finished mask. The
self-check finds out which one works for a model.
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
        anatomy: The facts about the model.
        manner: How masks reach its attention.
        rings: Whether layers with a window may keep a ring: each of them is given the mask of its window.
    """

    anatomy: Anatomy
    manner: Manner
    rings: bool = False

    @cached_property
    def kernels(self) -> Kernels:
        """The kernels over packed weights for passes over few rows."""
        return kernels(self.anatomy.model)

    @cached_property
    def sites(self) -> Sites:
        """The places where recurrent layers look up their operations."""
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
        """Run the nodes from `first` on. Their keys are written into the slots behind the committed units.

        Args:
            cache: The call's cache; it holds the nodes before `first` in its scratch slots.
            ids: `[batch, node]`: the units of the nodes from `first` on.
            index: The tree of the whole draft.
            first: The id of the first node in `ids`; always 0 if the model has recurrent layers.
            valid: `[batch, node]` bool; invalid nodes get the root's position, so that none lies beyond the context.
            keep: The nodes whose logits are wanted, as transformers' `logits_to_keep`.

        Returns:
            Logits `[batch, node, vocab]`.
        """
        nodes = ids.shape[1]
        cache.open(first, nodes)
        alone = nodes == 1 and index.is_chain and cache.start is not None and cache.holes is None
        holes = None if cache.holes is None else cache.holes[:, : cache.visible]
        exact = cache.fixed and nodes > 1 and ids.device.type == "cpu"  # elsewhere float64 costs too much
        seen = index.ancestor[:, first:], index.depth, cache.visible
        geometry = PassGeometry(cache.length, *seen, alone, holes, exact, cache.rings)
        arguments: dict[str, Any] = {cache_name(self.anatomy.model): cache, "use_cache": True}
        if names_argument(self.anatomy.model, "logits_to_keep"):
            arguments["logits_to_keep"] = keep
        if accepts_argument(self.anatomy.model, "position_ids"):
            arguments["position_ids"] = self._positions(cache, index.depth[:, first:], valid)
        recurrent = dispatched(self.sites, self.anatomy.ops, cache, index) if cache.recurrent else nullcontext()
        packed = narrow(self.kernels, 0 if cache.fixed else ids.numel())  # which it chooses by measured times
        with model_lock(self.anatomy.model), packed, recurrent:
            if self.manner == "explicit":
                mask = self._mask(geometry)
                logits: Tensor = self.anatomy.model(input_ids=ids, attention_mask=mask, **arguments).logits
            else:
                with tree_attention(self.anatomy.config, geometry):
                    logits = self.anatomy.model(input_ids=ids, **arguments).logits
        all_came = isinstance(keep, Tensor) and "logits_to_keep" not in arguments
        return logits[:, keep] if all_came else logits

    def _positions(self, cache: SlotCache, depth: Tensor, valid: Tensor | None) -> Tensor:
        """Position ids of nodes at `depth`: `[batch, node]`, or `[axes, batch, node]`."""
        root = (cache.length + cache.shift)[..., None]
        positions = root + depth if valid is None else torch.where(valid, root + depth, root)
        if not self.anatomy.position_table or self.anatomy.context is None:
            return positions
        # Finished rows at the end of the context still run, one position too far; their logits are not read.
        return positions.clamp(max=self.anatomy.context - 1)

    def _mask(self, geometry: PassGeometry) -> Tensor:
        """The mask in the form of the model's own attention: bool, or for `eager` a term that is added to scores."""
        if self.anatomy.config._attn_implementation != "eager":
            return geometry.tree
        term = torch.zeros(geometry.tree.shape, dtype=self.anatomy.model.dtype, device=geometry.tree.device)
        return term.masked_fill(~geometry.tree, torch.finfo(term.dtype).min)


def cache_name(model: Any) -> str:
    """The argument in which the model's forward takes its cache."""
    return "cache_params" if names_argument(model, "cache_params") else "past_key_values"


def accepts_argument(model: Any, argument: str) -> bool:
    """Whether the model's forward names an argument or has `**kwargs`."""
    kind: Any = type(model)
    return names_argument(model, argument) or _arguments(kind)[1]


def names_argument(model: Any, argument: str) -> bool:
    """Whether the model's forward names an argument; `generate` passes positions only to such models."""
    kind: Any = type(model)
    return argument in _arguments(kind)[0]


@lru_cache(maxsize=64)
def _arguments(kind: Any) -> tuple[frozenset[str], bool]:
    """The arguments of a class's forward, and whether it has `**kwargs`; cached, because every pass asks."""
    parameters = inspect.signature(kind.forward).parameters
    return frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())
