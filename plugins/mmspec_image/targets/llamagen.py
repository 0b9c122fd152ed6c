"""LlamaGen as a target: one logical row is two physical ones, with and without the condition; one verdict for both."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Raw, Started
from mmspec.hosts.linear import linears, narrow
from mmspec.hosts.masks import Pass
from mmspec.hosts.slot_cache import SlotCache
from mmspec_image.models.llamagen import LlamaGenTransformer


@dataclass(frozen=True)
class Condition:
    """What pictures are made after.

    Attributes:
        given: Classes `[batch]` int64, or caption features `[batch, caption, width]`.
        mask: `[batch, caption]` bool: positions that are not padding; None: all.
        null: What guidance leads away from: as `given`; None: the model's own null condition.
        null_mask: Of `null`; None: `mask`.
        guided: Whether there is an unconditional half at all.
    """

    given: Tensor
    mask: Tensor | None = None
    null: Tensor | None = None
    null_mask: Tensor | None = None
    guided: bool = True


@dataclass
class Memory:
    """One call's memory.

    Attributes:
        slots: Keys and values of all physical rows, the conditional half first.
        rows: Logical rows.
    """

    slots: SlotCache
    rows: int

    def physical(self, values: Tensor) -> Tensor:
        """What every half reads: all rows, once or twice."""
        halves = len(self.slots.length) // self.rows
        return values if halves == 1 else values.repeat(halves, *(1,) * (values.dim() - 1))


class LlamaGenTarget:
    """Codes of a picture in raster order.

    Args:
        model: The transformer.
    """

    offers = frozenset({"discrete", "tree", "window", "grow", "truncate", "codebook"})
    example = "mmspec_image.example:llamagen"

    def __init__(self, model: LlamaGenTransformer) -> None:
        self.model = model
        self.vocab: int | None = model.config.vocab_size
        self.context = model.cells
        self.grid = model.config.grid

    @property
    def codebook(self) -> Tensor:
        """Embeddings of the codes, for rules that ask which are alike: `[vocab, dim]`."""
        return self.model.tok_embeddings.weight.detach()

    @cached_property
    def _linears(self) -> Any:
        return linears(self.model)

    @torch.no_grad()
    def start(self, inputs: Condition, limit: int, width: int) -> Started:
        """Prefill a condition; no code is given.

        Raises:
            ValueError: More codes are asked for than a picture has.
        """
        if limit > self.context:
            raise ValueError(f"a picture of this model has {self.context} codes, {limit} were asked for")
        given = self.model.cls_embedding(inputs.given)
        mask, rows = inputs.mask, len(given)
        if inputs.guided:
            null = self.model.cls_embedding.null(rows) if inputs.null is None else inputs.null
            given = torch.cat([given, self.model.cls_embedding(null)])
            mask = _both(mask, inputs.null_mask, given.shape[1], rows, given.device)
        slots = self._slots(len(given), given.shape[1] + limit + width, given.device)
        slots.holes = None if mask is None else _holes(mask, slots.capacity)
        index = TreeIndex.chain(given.shape[1], given.device)
        hidden = self._pass(slots, given, index, 0)
        slots.length = slots.length + given.shape[1]
        logits = self.model.logits(hidden[:, -1:])
        memory = Memory(slots, rows)
        none = torch.zeros(rows, 0, dtype=torch.int64, device=given.device)
        return Started(memory, _raw(logits, rows), none, none.sum(1))

    @torch.inference_mode()
    def verify(self, cache: Memory, draft: Draft, first: int = 0) -> Raw:
        cache.slots.scratch = not draft.index.is_chain
        index = _of_rows(draft.index, cache)
        units = self.model.tok_embeddings(cache.physical(draft.units[:, first:]))
        with narrow(self._linears, units.shape[0] * units.shape[1]):
            return _raw(self.model.logits(self._pass(cache.slots, units, index, first)), cache.rows)

    @torch.inference_mode()
    def commit(self, cache: Memory, path: Tensor, count: Tensor) -> None:
        cache.slots.commit(cache.physical(path), cache.physical(count))

    def truncate(self, cache: Memory, length: Tensor) -> None:
        cache.slots.length = cache.physical(length) + self.model.config.cls_token_num

    def _slots(self, rows: int, capacity: int, device: torch.device) -> SlotCache:
        return SlotCache([DynamicLayer() for _ in self.model.layers], rows, capacity, device)

    def _pass(self, slots: SlotCache, x: Tensor, index: TreeIndex, first: int) -> Tensor:
        """Hidden states of embedded nodes `[row, node, dim]`, written behind what is committed."""
        nodes = x.shape[1]
        slots.open(first, nodes)
        geometry = Pass(slots.length, index.ancestor[:, first:], index.depth, slots.visible)
        alone = nodes == 1 and index.is_chain and slots.start is not None and slots.holes is None
        mask = None if alone else _seen(geometry, slots, first, nodes)
        position = slots.length[:, None] + index.depth[:, first:]
        # Finished rows pass along, one position further than the picture has, with nobody reading them.
        position = position.clamp(max=len(self.model.rotary) - 1)
        return self.model.run(x, position, mask, slots.layers)


def _seen(geometry: Pass, slots: SlotCache, first: int, nodes: int) -> Tensor:
    """The tree without padding of captions; a node always sees itself, or its row would be empty."""
    if slots.holes is None:
        return geometry.tree
    slot = torch.arange(slots.visible, device=slots.length.device)
    own = slots.length[:, None] + torch.arange(first, first + nodes, device=slots.length.device)
    itself = slot == own[..., None]
    return geometry.tree & ~slots.holes[:, None, None, : slots.visible] | itself[:, None]


def _of_rows(index: TreeIndex, cache: Memory) -> TreeIndex:
    """A tree of its own for every physical row, where rows have trees of their own."""
    if len(index.parent) == 1:
        return index
    parts = (cache.physical(part) for part in (index.parent, index.depth, index.ancestor, index.rank))
    return TreeIndex(*parts, index.deepest, index.widest, index.is_chain)


def _raw(logits: Tensor, rows: int) -> Raw:
    halves = logits.split(rows)
    return Raw(logits=halves[0], null=halves[1] if len(halves) > 1 else None)


def _both(mask: Tensor | None, null: Tensor | None, given: int, rows: int, device: torch.device) -> Tensor | None:
    if mask is None and null is None:
        return None
    whole = torch.ones(rows, given, dtype=torch.bool, device=device)
    mask = whole if mask is None else mask.bool()
    return torch.cat([mask, mask if null is None else null.bool()])


def _holes(mask: Tensor, capacity: int) -> Tensor:
    """`[row, capacity]` bool: slots of padding."""
    return torch.nn.functional.pad(~mask.bool(), (0, capacity - mask.shape[1]))
