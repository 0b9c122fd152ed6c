"""One pass of a transformers model over tree nodes: masks, positions, attention.

There are two manners. `interface`: the model's attention and masks go through transformers' interfaces, where ours are
used for the duration of the pass. `explicit`: the model computes attention itself and is given a finished mask. The
self-check finds out which one works for a model.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.once import once
from mmspec.core.tree import TreeIndex
from mmspec.hosts.attention import model_lock, tree_attention
from mmspec.hosts.devices import device_of
from mmspec.hosts.dispatch import Sites, dispatched, running, sites
from mmspec.hosts.experts import Experts
from mmspec.hosts.fingerprint import foreign
from mmspec.hosts.fused_layers import FusedLayers
from mmspec.hosts.linear import Kernels, kernels, narrow
from mmspec.hosts.masks import PassGeometry, current
from mmspec.hosts.model_info import ModelInfo, accepts_argument, cache_name, lengths, names_argument
from mmspec.hosts.quantised_layers import NONE, QuantisedLayers
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import windows
from mmspec.hosts.tree_op import Branches
from mmspec.registry.warn import warn

Manner = Literal["interface", "explicit"]
MANNERS: tuple[Manner, ...] = ("interface", "explicit")


@dataclass(frozen=True)
class Passes:
    """Runs a model over the nodes of drafts."""

    model_info: ModelInfo  # the facts about the model
    manner: Manner  # how masks reach its attention
    rings: bool = False  # whether layers with a window may keep a ring: each of them is given the mask of its window
    quantised: QuantisedLayers = NONE  # its quantised layers
    rows: int | None = None  # the rows for which its hooks are made; None: any number

    @once
    def kernels(self) -> Kernels:
        """The kernels over packed weights for passes over few rows."""
        return kernels(self.model_info.model)

    @once
    def experts(self) -> Experts:
        """The expert layers whose products can be chosen."""
        return Experts.of(self.model_info.model)

    @once
    def sites(self) -> Sites:
        """The places where recurrent layers look up their operations."""
        return sites(self.model_info.model, self.model_info.ops)

    @once
    def operations(self) -> dict[int, int]:
        """The operations with a recurrent state, by layer: counted in a pass over one unit."""
        device = device_of(self.model_info.model)
        cache = SlotCache(self.model_info.layers(), 1, 1, device)
        if cache.recurrent:
            self(cache, torch.zeros(1, 1, dtype=torch.int64, device=device), TreeIndex.chain(1, device))
        kinds = {number: [kind for kind, _ in layer.operations] for number, layer in cache.recurrent.items()}
        return {number: each.count("recurrent") for number, each in kinds.items()}

    def try_with(self, fused: FusedLayers) -> None:
        """Run the model over two units of two rows, with these parts as kernels."""
        device = device_of(self.model_info.model)
        cache = SlotCache(self.model_info.layers(), 2, 2, device)
        cache.fused = fused
        self(cache, torch.zeros(2, 2, dtype=torch.int64, device=device), TreeIndex.chain(2, device))

    @once
    def foreign(self) -> str:
        """The name of code of the model that is no library's; "" if there is none."""
        return foreign(self.model_info.model)

    @once
    def lengths(self) -> list[tuple[int, str]]:
        """The lengths, ascending, from which on the model may do something else, and their settings; those are left out
        that our masks apply.
        """
        masked = windows(self.model_info.layers()) if self.manner == "interface" else ()
        return sorted(length for length in lengths(self.model_info).items() if length[0] not in masked)

    @once
    def cache_argument(self) -> str:
        return cache_name(self.model_info.model)

    @once
    def keeps_logits(self) -> bool:
        """True if the model computes only the logits that are asked for."""
        return names_argument(self.model_info.model, "logits_to_keep")

    @once
    def takes_positions(self) -> bool:
        """True if the model's forward takes positions."""
        return accepts_argument(self.model_info.model, "position_ids")

    def __call__(
        self,
        cache: SlotCache,
        ids: Tensor,
        index: TreeIndex,
        *,
        first: int = 0,
        valid: Tensor | None = None,
        keep: Tensor | int = 0,
        decoding: bool = False,
    ) -> Tensor:
        """Run the nodes from `first` on; returns logits `[batch, node, vocab]`. Their keys are written into the slots
        behind the committed units.

        `ids [batch, node]` are the units of these nodes, `index` is the tree of the whole draft; the cache holds the
        nodes before `first` in its scratch slots, of which there are none if the model has recurrent layers. Nodes that
        are not `valid` (`[batch, node]` bool) get the root's position, so that none lies beyond the context. `keep` are
        the nodes whose logits are wanted, as transformers' `logits_to_keep`. `decoding` says that the prompt is behind:
        stock decoding then multiplies with experts in another way.
        """
        with self.ready(cache, ids.numel(), decoding):
            return self.run(cache, ids, index, first, valid, keep)

    @contextmanager
    def ready(self, cache: SlotCache, units: int, decoding: bool = False) -> Iterator[None]:
        """A block in which `run` may run over so many units, all rows together, or be traced, or be replayed."""
        packed = narrow(self.kernels, units, cache.fixed)
        kind = cache.length.device.type
        routed = self.experts.decoding(units, kind, cache.fixed) if decoding else nullcontext()
        with self.attending(cache.attention, cache.fused), packed, routed:
            yield

    def run(
        self,
        cache: SlotCache,
        ids: Tensor,
        index: TreeIndex,
        first: int = 0,
        valid: Tensor | None = None,
        keep: Tensor | int = 0,
    ) -> Tensor:
        """`__call__` inside of `ready`; torch can trace it over a cache of buffers."""
        nodes = ids.shape[1]
        cache.open(first, nodes)
        alone = nodes == 1 and index.is_chain and cache.start is not None and cache.holes is None
        geometry = self.geometry(cache, index, first, alone)
        arguments = self.arguments(cache, index.depth[:, first:], valid, keep)
        logits = self.forward(cache, ids, geometry, arguments, cache.branches(index))
        all_came = isinstance(keep, Tensor) and "logits_to_keep" not in arguments
        return logits[:, keep] if all_came else logits

    def geometry(self, cache: SlotCache, index: TreeIndex, first: int, alone: bool) -> PassGeometry:
        """The geometry of a pass over the nodes from `first` on; `alone` as in the class."""
        holes = None if cache.holes is None else cache.holes[:, : cache.visible]
        nodes = index.nodes - first
        exact = cache.exact and nodes > 1
        return PassGeometry(
            cache.length, index.ancestor[:, first:], index.depth, cache.visible, alone, holes, exact, cache.rings
        )

    def arguments(self, cache: SlotCache, depth: Tensor, valid: Tensor | None, keep: Tensor | int) -> dict[str, Any]:
        """The arguments of the model's forward beside ids and mask, for nodes at `depth [batch, node]`."""
        arguments: dict[str, Any] = {self.cache_argument: cache, "use_cache": True}
        if self.keeps_logits:
            arguments["logits_to_keep"] = keep
        if self.takes_positions:
            arguments["position_ids"] = self._positions(cache, depth, valid)
        return arguments

    @contextmanager
    def attending(self, attention: str, fused: FusedLayers = SlotCache.fused) -> Iterator[None]:
        """Inside the block `forward` runs: the model attends through our attention, by the name `attention` where it
        takes it from the interface, its operations through ours, and `fused` parts run as kernels.
        """
        ours = tree_attention(self.model_info.config, attention) if self.manner == "interface" else nullcontext()
        with model_lock(self.model_info.model), ours, dispatched([*self.sites, *fused.sites]), fused.used():
            yield

    def forward(
        self, cache: SlotCache, ids: Tensor, geometry: PassGeometry, arguments: dict[str, Any], branches: Branches
    ) -> Tensor:
        """The model's logits; torch can trace it. `branches` is the tree, for recurrent layers."""
        if self.manner == "explicit":
            arguments = {**arguments, "attention_mask": self._mask(geometry)}
        joined = nullcontext() if torch.compiler.is_compiling() else cache.fused.joined or nullcontext()
        with current.holding(geometry), running(self.model_info.ops, cache, branches), joined:
            logits: Tensor = self.model_info.model(input_ids=ids, **arguments).logits
        return logits

    def _positions(self, cache: SlotCache, depth: Tensor, valid: Tensor | None) -> Tensor:
        """Position ids of nodes at `depth`: `[batch, node]`, or `[axes, batch, node]`."""
        if cache.places is not None:
            unit = (cache.length - cache.origin)[:, None] + (depth if valid is None else torch.where(valid, depth, 0))
            return cache.places.gather(2, unit.clamp(max=cache.places.shape[2] - 1).expand(len(cache.places), -1, -1))
        root = (cache.length + cache.shift)[..., None]
        positions = root + depth if valid is None else torch.where(valid, root + depth, root)
        if not self.model_info.position_table or self.model_info.context is None:
            return positions
        # Finished rows at the end of the context still run, one position too far; their logits are not read.
        return positions.clamp(max=self.model_info.context - 1)

    def _mask(self, geometry: PassGeometry) -> Tensor:
        """The mask in the form of the model's own attention: bool, or for `eager` a term that is added to scores."""
        if self.model_info.config._attn_implementation != "eager":
            return geometry.tree
        term = torch.zeros(geometry.tree.shape, dtype=self.model_info.model.dtype, device=geometry.tree.device)
        return term.masked_fill(~geometry.tree, torch.finfo(term.dtype).min)


EXPERTS = (
    "expert layers may round by how many units an expert gets: one shape is no promise to the bit here (measured, in "
    "bfloat16 on a CPU: 396 of 396 texts of 33 such architectures kept it)"
)
"""The warning of a call with one shape whose model has expert layers."""
STATES = (
    "on this device the states of recurrent layers are float32, which round by how many units a round keeps: one shape "
    "is no promise to the bit here (measured with such states, in bfloat16 on a CPU: 191 of 210 texts of the shipped "
    "hybrid kept it)"
)
"""The warning of a call with one shape whose model has recurrent layers, where float64 is not affordable."""


def warned_of_limits(passes: Passes, slots: SlotCache, units: int) -> bool:
    """Warn of what rounds otherwise in a call of one shape, whose passes have `units` units; whether anything does."""
    experts = passes.model_info.has_experts and not passes.experts.batched(units)
    states = bool(passes.model_info.ops) and not slots.exact
    if experts:
        warn(EXPERTS)
    if states:
        warn(STATES)
    return experts or states or passes.quantised.shared  # of the last one, the call warns in any shape
