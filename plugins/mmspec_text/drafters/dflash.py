"""Drafts of a whole block in one pass of a trained head, from the target's own features: DFlash and its like.

DFlash (arXiv 2602.06036): c = norm(fc(states of some of the target's layers)) of every known unit gives the keys and
values of each of the head's layers; the rows [root, mask, …, mask] see them and one another, and each scores its
unit. So a draft is a product of distributions. DSpark (2607.05147) adds a Markov head: a term that depends on the unit
before. Domino (2605.29707) adds one that depends on all drafted units before, through a GRU. DFlash2 chooses among the
likeliest units of every depth by the unit before. JetSpec's rows (2606.18394) see only those before them.
A checkpoint holds `fc`, `hidden_norm`, `norm` and `layers.*`, and in its config `block_size`, `mask_token_id` and the
target's layers; embedding (scaled, where the target's own is) and output layer are the target's where it has none.
DSpark's confidence head guesses whether the target accepts a unit, before the unit is drawn.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`DFlash.loaded`).
Knobs: `form` is the shape of the draft; a tree costs the head nothing more than a chain, and every node costs the
target. No draft is deeper than the head's block. `sure` ends chains of DSpark before a unit that its confidence head
holds less likely, as the authors' `--confidence-threshold` does; 0, as theirs, ends none. It saves nodes of the target,
but not in captured rounds, which have one width. `keep` and `corpus` cut the output layer, as in `eagle`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.shapes import Chain, Shape
from mmspec.core.hidden import Lends
from mmspec.core.live import Live
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import TargetOutput
from mmspec.registry.options import option
from mmspec_text.drafters.heads.block import Block
from mmspec_text.drafters.heads.cache import CHUNK, Feed, HeadCache, Unknown, chain_path
from mmspec_text.drafters.heads.dflash.checkpoint import DFlashCheckpoint, read_dflash
from mmspec_text.drafters.heads.dflash.family import FIELDS, SPECULATORS
from mmspec_text.drafters.heads.drafter import HeadDrafter, HeadOptions
from mmspec_text.drafters.heads.features import Features, features_of
from mmspec_text.drafters.heads.inside import RowsInside
from mmspec_text.drafters.heads.memory import HeadMemory, begun
from mmspec_text.drafters.heads.rows import Rows
from mmspec_text.drafters.heads.vocabulary import TrimOptions


@dataclass(frozen=True)
class DFlashOptions(HeadOptions, TrimOptions):
    """Options of `dflash`."""

    sure: Annotated[float, Field(ge=0, le=1)] = option(
        0.0, "chain: a draft ends before a unit that DSpark's confidence head holds less likely"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sure and self.form != "chain":
            raise ValueError(f"sure={self.sure} ends chains, and form={self.form} drafts a tree; say form=chain")

    def build_shape(self) -> Shape:
        return Chain(self.sure) if self.form == "chain" else super().build_shape()


class Context(HeadCache):
    """The cache of one call: keys and values of the known units before the root, and the scratch of one block.

    `most` counts the known units of the longest row at the end of the call, and the rows of a block.
    """

    head: Any

    def catch_up(self, rows: Rows, known: State | Live) -> None:
        self.read(rows)

    @torch.no_grad()
    def read(self, rows: Rows, units: Tensor | None = None, unknown: Unknown | None = None) -> None:
        """Read the features of known units, which are nothing else to this head."""
        slots, columns = self.slots, rows.features.shape[1]
        for first in range(0, columns, CHUNK):
            size = min(CHUNK, columns - first)
            place, count = rows.piece(first, size)
            chain = TreeIndex.chain(size, place.device)
            slots.open(0, size)
            self.head.absorb(take_nodes(rows.features, place), slots, slots.length[:, None] + chain.depth)
            slots.commit(chain_path(size, len(count), place.device), count)

    @torch.no_grad()
    def block(self, root: Tensor) -> Block:
        """The head's output for the units behind the root `[batch]`."""
        return Block(self.head, self.head.block(root, self.slots), self.head.sequel, self.head.confidence)

    def opened(self, root: Tensor) -> tuple[TargetOutput, Feed]:
        block = self.block(root)
        return block.at_root(root), block.grow


class DFlash(HeadDrafter):
    """Drafts with a head of DFlash or DSpark."""

    kind, stored = "dflash", DFlashCheckpoint
    read = staticmethod(read_dflash)

    def __init__(self, options: DFlashOptions = DFlashOptions()) -> None:
        super().__init__(options)
        self.named_by = FIELDS[self.checkpoint.layout.convention]
        self._guesses = options.sure > 0
        if self._guesses and not self.checkpoint.architecture.confidence:
            raise ValueError(f"sure={options.sure} asks a confidence head, and {self.checkpoint.name!r} has none")

    def bind(self, target: Target) -> None:
        super().bind(target)
        head, self.network.guesses = self.checkpoint.architecture, self._guesses
        if 0 < head.candidates < self.shape.widest:
            raise ValueError(
                f"{self.shape} wants {self.shape.widest} siblings, and the head's selector keeps {head.candidates}"
            )
        ids = head.vocab if head.own_embedding else len(self._target.lend().embedding.weight)
        if not head.own_mask and not 0 <= (head.mask_token or 0) < ids:
            raise ValueError(
                f"the head {self.checkpoint.name!r} has the mask token {head.mask_token}, and there are embeddings of "
                f"{ids} ids: it is a head of another target"
            )

    def depth(self, k: int) -> int:
        return min(k, self.checkpoint.architecture.units)

    def start(self, state: State, inputs: Any) -> HeadMemory:
        self.join(state, inputs)
        return begun(self.network, state, self.network.architecture.block - 1, kind=Context)

    def inside(self, k: int, state: State) -> RowsInside:
        return RowsInside(self.network, self.shape, self.depth(k), state)

    def _features_of(self, target: Lends) -> Features:
        return dflash_features(self.checkpoint, target.layers())


def dflash_features(head: DFlashCheckpoint, layers: int) -> Features:
    """The features that a head reads of a target of so many layers; errors as in `features_of`.

    Where its config names no layers, the authors' choice is meant, but not in the layout of speculators: from the
    second layer to the last but three.
    """
    count, convention = head.architecture.features, head.layout.convention
    usual = [round(1 + i * (layers - 4) / (count - 1)) for i in range(count)] if count > 1 else [layers // 2]
    return features_of(head, layers, FIELDS[convention], [convention], [] if head.layout == SPECULATORS else usual)
