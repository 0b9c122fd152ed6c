"""Drafts of a head that predicts blocks of units: Falcon.

Gao et al., AAAI 2025 (doi 10.1609/aaai.v39i22.34566). The head is one of EAGLE-1 whose feature lies k places ahead, so
that one pass scores k units; the units of a block are independent of each other, and the next block reads the path that
was chosen. An LSTM, run over each row alone, joins embedding and feature.
The released code does not run as it is: it passes on the pair that torch's LSTM returns. This file follows it with the
output alone. Its LSTM has the batch on the axis of time, so that with one row it has no memory of other units. There
the rows of known units form blocks that depend on how many were accepted; here the last k of them always form one.
A checkpoint: EAGLE-1's tensors without `fc`, `lstm.weight_ih_l0` …, and in its config `k_mask`, which is k.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Behind fewer than k known units nothing is drafted.
Knobs: `form` is the shape of the draft; `published` is the tree of the released script for MT-bench
(`kmask2_8layer_tree`: 165 nodes, eight levels). Every k-th level costs a pass of the head.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.shapes import Shape
from mmspec.core.drafters.shapes.static import Static
from mmspec.core.drafters.static_tree import counted_tree
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Step, TargetOutput
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec.registry.options import option
from mmspec_text.drafters.eagle import LEVELS, FamilyDrafter
from mmspec_text.drafters.heads.cache import CHUNK, Feed, chain_path, empty_layers
from mmspec_text.drafters.heads.drafter import HeadOptions
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.memory import of_prompt, with_emitted
from mmspec_text.drafters.heads.rows import Rows

TREE = (
    *(20,),
    *(10, 2, 2, 1, *[0] * 16),
    *(10, 2, 2, 1, *[0] * 6, 2, 0, 1, 0, 1),
    *(10, 2, 1, *[0] * 7, 2, 1, 1, 1, 1, 2, 0, 1, 1),
    *(10, 2, 1, *[0] * 7, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1),
    *(9, 2, 1, *[0] * 7, *[1] * 11),
    *(9, 2, 1, *[0] * 6, 1, 0, 0, 1, 0, 0, *[1] * 7, 0),
    *(8, 2, 1, *[0] * 6, *[1] * 12),
)
"""The children of the root and of every node of the released tree, as `counted_tree` takes them."""


@dataclass(frozen=True)
class FalconOptions(HeadOptions):
    """Options of `falcon`."""

    form: Literal["chain", "rerank", "greedy", "heap", "branching", "beam", "published"] = option(  # type: ignore[assignment]
        "rerank", "which nodes to draft; rerank, greedy: rules match and relaxed, the others: any"
    )

    def build_shape(self) -> Shape:
        return Static(*counted_tree(TREE, LEVELS, max(TREE))) if self.form == "published" else super().build_shape()


@dataclass
class FalconMemory:
    """The head's memory of a call."""

    cache: "BlockCache"
    rows: Rows  # the features that it has not read yet, and before them the last block's; after a draft these alone
    columns: slice  # which of the target's states they are
    unread: bool = True  # whether there are some that it has not read

    def opened(self, state: State) -> tuple[TargetOutput, Feed]:
        """The beginning of the next draft, as `HeadCache.opened` says."""
        if self.unread:
            block = self.cache.block
            self.cache.read(self.rows, self.rows.units(state))
            self.rows = Rows(self.rows.features[:, -block:], self.rows.count.clamp(max=block))
            self.unread = False
        return self.cache.at_root(), self.cache.grow

    def observe(self, state: State, step: Step) -> None:
        """Take the features of the units that a round emitted."""
        self.rows, self.unread = with_emitted(self.rows, step, self.columns), True


class Falcon(FamilyDrafter):
    """Drafts with a head of Falcon, which is not tried on a prompt."""

    kind = "falcon"
    read = staticmethod(partial(read_checkpoint, kind="falcon"))

    def __init__(self, options: FalconOptions = FalconOptions()) -> None:
        super().__init__(replace(options, probe=False))
        self.block = self.checkpoint.architecture.block

    def start(self, state: State, inputs: Any) -> FalconMemory:
        self.join(state, inputs)
        drafted = self.block * (1 + self.shape.fed(state.budget.k))
        most = state.prompt_length + state.limit + drafted + 2
        cache = BlockCache(self.network, self.block, state.rows, most, state.root.device)
        return FalconMemory(cache, of_prompt(state, self.columns), self.columns)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft = super().propose(state, k, noise)
        return replace(draft, valid=draft.valid & ~state.memory.cache.short[:, None])


@dataclass
class Blocks:
    """The blocks in the scratch, the root's first."""

    states: Tensor  # `[batch, block, row, hidden]`: what the head predicted at their rows
    ancestor: Tensor  # `[batch, block, block]` bool: `[b, i, j]`: j is i, or a block before i
    level: Tensor  # blocks from the root's to the latest, the root's not counted
    of: Tensor  # `[batch, node]`: the block that scores behind a node that was fed; the root is node 0
    depth: int = 0  # depth of the nodes that were fed last


class BlockCache:
    """The cache of one call of a head that drafts a block of units in one pass, and its scratch.

    A row has the target's feature of unit x_t and the embedding of x_{t+1}; a head of block k predicts the feature k
    places on, from which comes x_{t+1+k}. So the last k rows of the known units score the next k units at once, and
    rows of one block see each other whole. Behind them every path of k drafted units is a block of k rows, whose
    features are those that the block before it predicted.

    The last k known rows are never committed: other rows are behind them in the next round, so that they are read
    again. `most` counts the known units of the longest row at the end of the call, and the rows of one draft.
    """

    def __init__(self, head: Head, block: int, rows: int, most: int, device: torch.device) -> None:
        self.head, self.block = head, block
        self.slots = SlotCache(empty_layers(head.depth), rows, most + CHUNK + block, device)
        self.blocks: Blocks | None = None
        # [batch]: rows with fewer known rows than a block has, behind which nothing is scored
        self.short = torch.ones(rows, dtype=torch.bool, device=device)

    @torch.no_grad()
    def read(self, rows: Rows, units: Tensor) -> None:
        """Read true rows and their units `[batch, column]`, the last block of the round before among them; the last k
        of them become the root's block.
        """
        columns, block, first = rows.features.shape[1], self.block, 0
        while first < columns:
            size = columns - first if columns - first <= CHUNK + block else CHUNK
            last = first + size == columns
            place, count = rows.piece(first, size)
            order = torch.arange(size, device=place.device)
            inside = (order >= (count - block)[:, None]) & (order < count[:, None])
            chain = TreeIndex.chain(size, place.device)
            seen = chain.ancestor | (inside[:, :, None] & inside[:, None, :]) if last else chain.ancestor
            states = self.head.taken_in(take_nodes(rows.features, place))
            result = self._passed(take_nodes(units, place), states, seen, chain.depth, 0)
            done = (count - block).clamp(min=0) if last else count
            self.slots.commit(chain_path(size, len(count), place.device), done)
            if last:
                self.short = count < block
                at = (count - block).clamp(min=0)[:, None] + torch.arange(block, device=place.device)
                states = take_nodes(result, at.clamp(max=size - 1))[:, None]  # of the root's block
                none = torch.zeros(len(states), 1, dtype=torch.int64, device=states.device)
                self.blocks = Blocks(states, torch.ones_like(none, dtype=torch.bool)[:, None], none, none)
            first += size

    @torch.no_grad()
    def at_root(self) -> TargetOutput:
        """The output at the root, one node."""
        assert self.blocks is not None
        return TargetOutput(logits=self.head.logits(self.blocks.states[:, 0, :1]))

    @torch.no_grad()
    def grow(self, draft: Draft, first: int) -> TargetOutput:
        """The output at the nodes of a rooted draft from `first` on, a level; those before were fed."""
        assert self.blocks is not None
        blocks, rows = self.blocks, len(draft.units)
        parent = draft.index.parent.expand(rows, -1)
        above = blocks.of.gather(1, parent[:, first:])  # [batch, node]: the blocks that scored these nodes
        blocks.depth += 1
        inside = blocks.depth % self.block
        if not inside:
            above = self._add(draft, parent, first, above)
        blocks.of = torch.cat([blocks.of, above], 1)
        return TargetOutput(logits=self.head.logits(take_nodes(blocks.states[:, :, inside], above)))

    def _add(self, draft: Draft, parent: Tensor, first: int, above: Tensor) -> Tensor:
        """Run a block for every node from `first` on, behind the blocks `above`; the numbers of the new ones."""
        blocks, k = self.blocks, self.block
        assert blocks is not None
        rows, new = above.shape
        node, path = torch.arange(first, first + new, device=above.device).expand(rows, -1), list[Tensor]()
        for _ in range(k):
            path.insert(0, draft.units.gather(1, node))
            node = parent.gather(1, node)
        fed = blocks.ancestor.shape[1]
        itself = torch.eye(new, dtype=torch.bool, device=above.device).expand(rows, -1, -1)
        seen = torch.cat([take_nodes(blocks.ancestor, above), itself], 2)  # [batch, new, fed + new]
        padded = torch.nn.functional.pad(blocks.ancestor, (0, new))
        blocks.ancestor = torch.cat([padded, seen], 1)
        blocks.level = torch.cat([blocks.level, blocks.level.gather(1, above) + 1], 1)
        each = seen.repeat_interleave(k, 1).repeat_interleave(k, 2)
        depth = (k * blocks.level[..., None] + torch.arange(k, device=above.device)).flatten(1)
        states = take_nodes(blocks.states, above).flatten(1, 2)
        result = self._passed(torch.stack(path, 2).flatten(1), states, each, depth, k * fed)
        blocks.states = torch.cat([blocks.states, result.unflatten(1, (new, k))], 1)
        return torch.arange(fed, fed + new, device=above.device).expand(rows, -1)

    def _passed(self, units: Tensor, states: Tensor, seen: Tensor, depth: Tensor, first: int) -> Tensor:
        slots = self.slots
        slots.open(first, units.shape[1])
        return self.head.passed(units, states, slots, PassGeometry(slots.length, seen, depth, slots.visible))
