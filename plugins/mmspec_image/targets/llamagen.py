"""LlamaGen as a target: one logical row is two physical ones, with and without the condition; one verdict for both."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Raw, Started
from mmspec.hosts.linear import Kernel, kernels, narrow, renew
from mmspec.hosts.masks import Pass
from mmspec.hosts.offload import awake, hooks_of
from mmspec.hosts.slot_cache import SlotCache
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.targets.halves import Halves


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
        self._kernels: Sequence[Kernel] = ()

    @property
    def codebook(self) -> Tensor:
        """What codes look like, for rules that ask which are alike: `[vocab, width]`.

        The VQ's own entries where a pipeline brought transformer and VQ together, else the transformer's embeddings.
        """
        if self.model.entries is not None:
            return self.model.entries
        table = self.model.tok_embeddings
        with awake(self.model, table):
            return table.weight.detach().clone() if hooks_of(self.model) else table.weight.detach()

    @torch.no_grad()
    def start(self, inputs: Condition, limit: int, width: int) -> Started:
        """Prefill a condition; no code is given.

        Raises:
            ValueError: More codes are asked for than a picture has.
        """
        if limit > self.context:
            raise ValueError(f"a picture of this model has {self.context} codes, {limit} were asked for")
        with awake(self.model):
            given = self.model.cls_embedding(inputs.given)
            # Found out in every call: the model may have moved, or been offloaded.
            ours = given.device.type == "cpu" and not hooks_of(self.model)
            self._kernels = kernels(self.model) if ours else ()
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
            logits = self.model.logits(hidden[:, -1:])
        memory = Halves(slots, rows, slots.length)
        none = torch.zeros(rows, 0, dtype=torch.int64, device=given.device)
        return Started(memory, memory.raw(logits), none, none.sum(1))

    def verify(self, cache: Halves, draft: Draft, first: int = 0) -> Raw:
        cache.slots.scratch = not draft.index.is_chain
        with awake(self.model), torch.inference_mode():
            index = cache.index(draft.index)
            units = self.model.tok_embeddings(cache.physical(draft.units[:, first:]))
            with narrow(self._kernels, units.shape[0] * units.shape[1]):
                return cache.raw(self.model.logits(self._pass(cache.slots, units, index, first)))

    def renew_null(self, cache: Halves, null: Tensor, null_mask: Tensor | None, codes: Tensor) -> None:
        """From now on guidance leads away from something else: its half is prefilled again, committed codes included.

        Args:
            cache: The call's memory.
            null: As in `Condition`.
            null_mask: As in `Condition`; None: nothing is padding.
            codes: `[batch, n]`: every row's committed codes first; what follows them in a row is not looked at.

        Raises:
            ValueError: The call began without guidance, or `null` has another shape than a condition.
        """
        slots, rows = cache.slots, cache.rows
        if len(slots.length) == rows:
            raise ValueError("this call began without guidance, so there is nothing that it could lead away from")
        with awake(self.model), torch.inference_mode():
            given = self.model.cls_embedding(null)
            if given.shape[:2] != (rows, self.model.config.cls_token_num):
                raise ValueError(f"what guidance leads away from is {list(null.shape)}, for {rows} rows")
            units = torch.cat([given, self.model.tok_embeddings(codes)], 1)
            fresh = self._slots(rows, slots.capacity, given.device)
            holes = None if null_mask is None else _holes(null_mask, fresh.capacity)
            fresh.holes = holes
            self._pass(fresh, units, TreeIndex.chain(units.shape[1], given.device), 0)
            for ours, theirs in zip(slots.layers, fresh.layers, strict=True):
                ours.keys[rows:], ours.values[rows:] = theirs.keys, theirs.values
            if holes is not None or slots.holes is not None:
                none = torch.zeros(rows, slots.capacity, dtype=torch.bool, device=given.device)
                first = none if slots.holes is None else slots.holes[:rows]
                slots.holes = torch.cat([first, none if holes is None else holes])

    @torch.inference_mode()
    def commit(self, cache: Halves, path: Tensor, count: Tensor) -> None:
        cache.commit(path, count)

    def truncate(self, cache: Halves, length: Tensor) -> None:
        cache.truncate(length)

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


def _both(mask: Tensor | None, null: Tensor | None, given: int, rows: int, device: torch.device) -> Tensor | None:
    if mask is None and null is None:
        return None
    whole = torch.ones(rows, given, dtype=torch.bool, device=device)
    mask = whole if mask is None else mask.bool()
    return torch.cat([mask, mask if null is None else null.bool()])


def _holes(mask: Tensor, capacity: int) -> Tensor:
    """`[row, capacity]` bool: slots of padding."""
    return torch.nn.functional.pad(~mask.bool(), (0, capacity - mask.shape[1]))
