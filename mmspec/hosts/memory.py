"""Limits of a call: the length that a model can have, and the bytes of its caches (SpecMemo, arXiv 2506.01986).

The paper's model of memory: a slot of one row costs κ = Σ over layers of 2 · heads · width · bytes, and speculative
decoding needs κ_T · (S + N) for the target and κ_D · (S + γ) for the draft model, where S is the longest text, N the
nodes of a tree and γ those that the draft model is fed. Buffers of the longest position that a model knows are not
made. Here κ is read off the tensors of a pass over one unit, so that shared keys, windows and latent keys count as what
they are.

A limited cache is allocated once, when the call begins: a cache that grows holds its old slots and its new ones for a
moment. What a pass computes (scores, masks, hidden states) is no cache and is not counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer

from mmspec.core.tree import TreeIndex
from mmspec.hosts.devices import device_of
from mmspec.hosts.fingerprint import ResultsByModel, arithmetic
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import BLOCK, in_blocks
from mmspec.registry.warn import warn


@dataclass(frozen=True)
class CacheCost:
    """The contents of a model's cache in one slot of one row."""

    # Of every layer that holds keys: the bytes of keys and values, and its window (None: it sees all slots)
    layers: tuple[tuple[int, int | None], ...]

    def bytes(self, rows: int, slots: int, rings: Mapping[int, int] = MappingProxyType({})) -> int:
        """Bytes of a cache of so many slots a row, in whole blocks; `rings` as in `SlotCache`."""
        places = in_blocks(slots)
        kept = (
            size * (places if window is None else min(places, rings.get(window, places)))
            for size, window in self.layers
        )
        return rows * sum(kept)


@dataclass(frozen=True)
class Memory:
    """A limit for the caches of a call."""

    limit: int  # bytes
    # Given the rows, and the most units of a row, the bytes of the call's other caches
    beside: Callable[[int, int], int] = lambda rows, units: 0

    def slots(
        self, cost: CacheCost, rows: int, *, longest: int, new: int, width: int, rings: Mapping[int, int], fixed: bool
    ) -> int:
        """The slots of a row: as many as drafts of `width` nodes want, or those that fit.

        Behind `longest` units of a prompt, `new` ones are wanted. `width` counts the root, too; `fixed` says that every
        pass has so many nodes. `rings` are as in `SlotCache`. Refuses where not even plain decoding, or the width of
        all passes, fits.
        """
        units = longest + new
        least, wanted = in_blocks(units + (width if fixed else 1)), in_blocks(units + width)
        need = cost.bytes(rows, least, rings)
        if need > self.limit:
            what = f"with drafts of {width} nodes in one shape" if fixed else "without any draft"
            raise ValueError(
                f"{what}, the target's cache needs {need:,} bytes: {rows} rows of {least} slots, behind prompts of up "
                f"to {longest} units; memory_budget is {self.limit:,} bytes, and {self._advice(cost, rows, longest)}"
            )
        others = self.beside(rows, units)
        fitting = (n for n in range(wanted, least, -BLOCK) if cost.bytes(rows, n, rings) + others <= self.limit)
        return next(fitting, least)

    def _advice(self, cost: CacheCost, rows: int, longest: int) -> str:
        blocks = self.limit // cost.bytes(rows, BLOCK)
        new = blocks * BLOCK - longest - 1
        return f"has room for {new} new units" if new > 0 else f"has no room behind them: {blocks * BLOCK} slots fit"


def cost(passes: Passes) -> CacheCost:
    """The cost of a slot of a model's cache, read off the tensors of a pass over one unit."""
    model = passes.model_info.model
    known, key = _costs.of(model), arithmetic(model)
    if key not in known:
        device = device_of(model)
        cache = SlotCache(passes.model_info.layers(), 1, 1, device)
        with torch.inference_mode():
            passes(cache, torch.zeros(1, 1, dtype=torch.int64, device=device), TreeIndex.chain(1, device))
        windows = [
            layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
            for layer in passes.model_info.layers()
        ]
        owning = [(layer, window) for layer, window in zip(cache.layers, windows, strict=True) if layer in cache.owning]
        known[key] = CacheCost(
            tuple(((layer.keys.nbytes + layer.values.nbytes) // cache.capacity, window) for layer, window in owning)
        )
    return known[key]


def held(cache: SlotCache) -> int:
    """Bytes of the keys and values that a cache holds."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.owning)


_costs: ResultsByModel[CacheCost] = ResultsByModel()


def refuse_length(model_info: ModelInfo, context: int | None, longest: int, limit: int) -> None:
    """Refuse a call that does not fit into `context` positions (None: no limit), or could not be continued exactly."""
    if context is not None and longest > context:
        raise ValueError(f"the prompt has {longest} tokens and the model's context is {context}; shorten it")
    if context is not None and model_info.position_table and longest + limit - 1 > context:
        warn(
            f"{longest} tokens of prompt and {limit} new ones do not fit the model's table of {context} "
            "positions; where transformers fails, text goes on at the last position: ask for fewer tokens"
        )
    reach = model_info.reach
    if reach is not None and longest + limit > reach:
        raise ValueError(
            f"{longest} tokens of prompt and {limit} new ones go beyond position {reach}, and "
            f"{model_info.reach_reason}: drafts could not be verified exactly; ask for fewer tokens, or "
            "disable() first"
        )


def refuse_together(model_info: ModelInfo, mask: Tensor, limit: int, rows: int) -> None:
    """Refuse rows that stock reads as columns of a batch, beyond where this is no matter (`ModelInfo.together`)."""
    columns, together = mask.shape[1] + limit, model_info.together
    if together is not None and columns > together and (rows > 1 or not bool(mask[:, 0].all())):
        raise ValueError(
            f"{mask.shape[1]} columns of prompt and {limit} new ones go beyond {together} (floor_scale), from where on "
            f"{type(model_info.model).__name__} scales attention by the column of a batch, whatever is padding in a "
            "row: verified drafts would be those of the row alone; generate one row at a time and without padding, or "
            "disable() first"
        )
