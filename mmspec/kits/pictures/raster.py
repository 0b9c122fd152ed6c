"""Passes of a causal raster transformer on the core's cache, with and without the condition: a target's inner half.

The transformer reads conditioning positions, then cells in raster order; where there is guidance, one logical row is
two physical ones. What a unit is, what its scores are and what a target offers is the target's business.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.hosts.linear import Kernels, kernels, narrow, renew
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.offload import awake, hooks_of
from mmspec.hosts.slot_cache import SlotCache
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.halves import Halves


class RasterModel(Protocol):
    """What is asked of the transformer, a `torch.nn.Module`.

    Attributes:
        layers: Its blocks.
        rotary: `[position, …]`: one entry a position, those of the condition first, then one a cell.
        cls_embedding: From conditions to `[batch, position, dim]`; `null(rows)` is the null condition.
        config: Has `cls_token_num`: conditioning positions.
    """

    layers: nn.ModuleList
    rotary: Tensor
    cls_embedding: Any
    config: Any

    def embed(self, units: Tensor, /) -> Tensor:
        """`[batch, node, dim]` of units `[batch, node, *unit]`."""
        ...

    def run(self, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any, /) -> Tensor:
        """Hidden states of embedded positions, as `mmspec.kits.pictures.models.blocks` takes masks and keys."""
        ...


class Raster:
    """Prefill, passes, and another null condition in mid-call; `commit` and `truncate` are those of `Halves`.

    Args:
        model: The transformer.
        score: From hidden states `[row, node, dim]` to what the target makes its distributions of, `[row, node, …]`;
            run while the model's weights are at hand.
    """

    def __init__(self, model: RasterModel, score: Callable[[Tensor], Tensor]) -> None:
        self.model, self.score = model, score
        self._kernels: Kernels = Kernels()

    @torch.no_grad()
    def start(self, inputs: Condition, limit: int, width: int) -> tuple[Halves, Tensor]:
        """Prefill a condition.

        Args:
            inputs: The condition.
            limit: Units wanted.
            width: Most nodes of a draft, root included.

        Returns:
            The call's memory, and scores after the condition, `[physical, 1, …]`: the conditional half first.
        """
        with awake(self._module):
            given = self.model.cls_embedding(inputs.given)
            # Found out in every call: the model may have moved, or been offloaded.
            ours = given.device.type == "cpu" and not hooks_of(self._module)
            self._kernels = kernels(self._module) if ours else Kernels()
            renew(self._kernels)
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
            return Halves(slots, rows, slots.length), self.score(hidden[:, -1:])

    def verify(self, cache: Halves, draft: Draft, first: int = 0) -> Tensor:
        """Scores `[physical, node, …]` of a rooted draft's nodes from `first` on."""
        cache.slots.scratch = not draft.index.is_chain
        with awake(self._module), torch.inference_mode():
            index = cache.index(draft.index)
            units = self.model.embed(cache.physical(draft.units[:, first:]))
            with narrow(self._kernels, units.shape[0] * units.shape[1]):
                return self.score(self._pass(cache.slots, units, index, first))

    def renew_null(self, cache: Halves, null: Tensor, null_mask: Tensor | None, units: Tensor) -> None:
        """From now on guidance leads away from something else: its half is prefilled again, committed units included.

        Args:
            cache: The call's memory.
            null: As in `Condition`.
            null_mask: As in `Condition`; None: nothing is padding.
            units: `[batch, n, *unit]`: every row's committed units first; what follows them in a row is not looked at.

        Raises:
            ValueError: The call began without guidance, or `null` has another shape than a condition.
        """
        slots, rows = cache.slots, cache.rows
        if len(slots.length) == rows:
            raise ValueError("this call began without guidance, so there is nothing that it could lead away from")
        with awake(self._module), torch.inference_mode():
            given = self.model.cls_embedding(null)
            if given.shape[:2] != (rows, self.model.config.cls_token_num):
                raise ValueError(f"what guidance leads away from is {list(null.shape)}, for {rows} rows")
            x = torch.cat([given, self.model.embed(units)], 1)
            fresh = self._slots(rows, slots.capacity, given.device)
            holes = None if null_mask is None else _holes(null_mask, fresh.capacity)
            fresh.holes = holes
            self._pass(fresh, x, TreeIndex.chain(x.shape[1], given.device), 0)
            for ours, theirs in zip(slots.owning, fresh.owning, strict=True):
                ours.keys[rows:], ours.values[rows:] = theirs.keys, theirs.values
            if holes is not None or slots.holes is not None:
                none = torch.zeros(rows, slots.capacity, dtype=torch.bool, device=given.device)
                first = none if slots.holes is None else slots.holes[:rows]
                slots.holes = torch.cat([first, none if holes is None else holes])

    @property
    def _module(self) -> nn.Module:
        assert isinstance(self.model, nn.Module)
        return self.model

    def _slots(self, rows: int, capacity: int, device: torch.device) -> SlotCache:
        return SlotCache([DynamicLayer() for _ in self.model.layers], rows, capacity, device)

    def _pass(self, slots: SlotCache, x: Tensor, index: TreeIndex, first: int) -> Tensor:
        """Hidden states of embedded nodes `[row, node, dim]`, written behind what is committed."""
        nodes = x.shape[1]
        slots.open(first, nodes)
        geometry = PassGeometry(slots.length, index.ancestor[:, first:], index.depth, slots.visible)
        alone = nodes == 1 and index.is_chain and slots.start is not None and slots.holes is None
        mask = None if alone else _seen(geometry, slots, first, nodes)
        position = slots.length[:, None] + index.depth[:, first:]
        # Finished rows pass along, one position further than the picture has, with nobody reading them.
        position = position.clamp(max=len(self.model.rotary) - 1)
        return self.model.run(x, position, mask, slots.layers)


def _seen(geometry: PassGeometry, slots: SlotCache, first: int, nodes: int) -> Tensor:
    """The tree without padding of captions; a node always sees itself, or its row would be empty."""
    if slots.holes is None:
        return geometry.tree
    slot = torch.arange(slots.visible, device=slots.length.device)
    own = slots.length[:, None] + torch.arange(first, first + nodes, device=slots.length.device)
    itself = slot == own[..., None]
    return geometry.tree & ~slots.holes[:, None, None, : slots.visible] | itself[:, None]


def _both(mask: Tensor | None, null: Tensor | None, given: int, rows: int, device: torch.device) -> Tensor | None:
    if mask is None and null is None:
        return None
    whole = torch.ones(rows, given, dtype=torch.bool, device=device)
    mask = whole if mask is None else mask.bool()
    return torch.cat([mask, mask if null is None else null.bool()])


def _holes(mask: Tensor, capacity: int) -> Tensor:
    """`[row, capacity]` bool: slots of padding."""
    return torch.nn.functional.pad(~mask.bool(), (0, capacity - mask.shape[1]))
