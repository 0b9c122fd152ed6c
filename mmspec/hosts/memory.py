"""Limits of a call: the length that a model can have, and the bytes that it takes (SpecMemo, arXiv 2506.01986).

The paper's model of memory: a slot of one row costs κ = Σ over layers of 2 · heads · width · bytes, and speculative
decoding needs κ_T · (S + N) for the target and κ_D · (S + γ) for the draft model, where S is the longest text, N the
nodes of a tree and γ those that the draft model is fed; beside it weights, scores and masks. Buffers of the longest
position that a model knows are not made. Here κ is read off the tensors of a pass over one unit, so that shared keys,
windows and latent keys count as what they are.

A pass over n nodes takes, while it runs, for each of them the larger one of what a layer computes and of its scores
(`Cost.work`). A limited cache is allocated once, when the call begins: a cache that grows holds its old slots and its
new ones for a moment.
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
from mmspec.hosts.linear import ROWS
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.passes import Passes
from mmspec.hosts.prefill import CHUNK
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import BLOCK, in_blocks
from mmspec.registry.warn import warn

MASK = 16  # bytes of a pass's masks, and of the indices of which they are made, for a node and a slot


@dataclass(frozen=True)
class Cost:
    """The contents of a model's cache in one slot of one row, and what a node takes while a pass runs."""

    # Of every layer that holds keys: the bytes of keys and values, and its window (None: it sees all slots)
    layers: tuple[tuple[int, int | None], ...]
    states: int = 0  # bytes of a node inside of a layer: three states, and an MLP's three results
    vocab: int = 0

    def bytes(self, rows: int, slots: int, rings: Mapping[int, int] = MappingProxyType({})) -> int:
        """Bytes of a cache of so many slots a row, in whole blocks; `rings` as in `SlotCache`."""
        places = in_blocks(slots)
        kept = (
            size * (places if window is None else min(places, rings.get(window, places)))
            for size, window in self.layers
        )
        return rows * sum(kept)

    def work(self, rows: int, nodes: int, slots: int, copies: int = 1) -> int:
        """Bytes of a pass over so many nodes a row, whose scores exist in so many float32 copies at once."""
        return rows * nodes * (max(self.states, 4 * copies * self.vocab) + MASK * in_blocks(slots))

    def reading(self, rows: int, longest: int) -> int:
        """Bytes of the passes over a prompt, which score its last unit alone."""
        return self.work(rows, min(longest, CHUNK), longest, copies=0)


@dataclass(frozen=True)
class Memory:
    """A limit for the memory of a call."""

    limit: int  # bytes
    weights: int = 0  # bytes of it that models take, whatever the call is
    # Given the rows, the longest prompt, the most units of a row and the slots of one, the bytes beside this cache in a
    # call with drafts
    beside: Callable[[int, int, int, int], int] = lambda rows, longest, units, slots: 0

    def slots(
        self, cost: Cost, rows: int, *, longest: int, new: int, width: int, rings: Mapping[int, int], fixed: bool
    ) -> int:
        """The slots of a row: as many as drafts of `width` nodes want, or those that fit.

        Behind `longest` units of a prompt, `new` ones are wanted. `width` counts the root, too; `fixed` says that every
        pass has so many nodes. `rings` are as in `SlotCache`. Refuses where not even plain decoding, or the width of
        all passes, fits.
        """
        units, nodes = longest + new, width if fixed else 1
        least, wanted = in_blocks(units + nodes), in_blocks(units + width)
        work = max(cost.reading(rows, longest), cost.work(rows, nodes, least))
        need, own = cost.bytes(rows, least, rings), self.limit - self.weights
        if need + work > own:
            what = f"with drafts of {width} nodes in one shape" if fixed else "without any draft"
            room = max(0, own - work) // cost.bytes(rows, BLOCK) * BLOCK
            fits = f"room for {room - longest - nodes} new units" if room > longest + nodes else "no room behind them"
            raise ValueError(
                f"{what}, a call needs {self.weights + work + need:,} bytes: {self.weights:,} of weights, {work:,} of "
                f"a pass and {need:,} of the target's cache, which are {rows} rows of {least} slots, behind prompts of "
                f"up to {longest} units; memory_budget is {self.limit:,} bytes, and has {fits}: {room} slots fit"
            )

        def whole(slots: int) -> int:
            return cost.bytes(rows, slots, rings) + max(work, self.beside(rows, longest, units, slots))

        return next((n for n in range(wanted, least, -BLOCK) if whole(n) <= own), least)


def cost(passes: Passes) -> Cost:
    """The cost of a slot of a model's cache and of a node, read off the tensors of a pass over one unit, and off the
    largest matrix of a layer.
    """
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
        slots = (((layer.keys.nbytes + layer.values.nbytes) // cache.capacity, window) for layer, window in owning)
        matrices = [p for layer in passes.model_info.language.layers for p in layer.parameters() if p.dim() > 1]
        inside = max((max(p.shape) for p in matrices), default=0) + passes.model_info.config.hidden_size
        known[key] = Cost(tuple(slots), 3 * inside * model.dtype.itemsize, passes.model_info.vocab)
    return known[key]


def weights(*models: Passes) -> int:
    """Bytes of the parameters and buffers of models, and of the copies that narrow passes lay out."""
    own, copies = dict[int, int](), dict[int, int]()
    for passes in models:
        model, kernels = passes.model_info.model, passes.kernels
        own |= {each.data_ptr(): each.nbytes for each in (*model.parameters(), *model.buffers())}
        copies |= {id(each.layer.weight): each.layer.weight.nbytes for each in kernels if kernels.fewest <= ROWS}
    return sum(own.values()) + sum(copies.values())


def held(cache: SlotCache) -> int:
    """Bytes of the keys and values that a cache holds."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.owning)


_costs: ResultsByModel[Cost] = ResultsByModel()


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
