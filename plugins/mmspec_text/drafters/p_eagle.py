"""Drafts of all units in one pass of an EAGLE head that was trained for it: P-EAGLE.

Hui et al., arXiv 2602.01469. The head is one of EAGLE-3 (`eagle`). Behind the root's row it reads rows of units that
are not known: the embedding of a mask token, and fc of a learnt feature (`mask_hidden`), at the positions that follow.
Row k scores the unit k places behind the root, so that a draft is a product of distributions. All rows that were
accepted are read again with their true features, as in EAGLE; the mask's rows are never kept.
A checkpoint holds EAGLE-3's tensors and `mask_hidden`, and in its config the mask token (`mask_token_id`,
`ptd_token_id` or `pard_token`); layouts of speculators and of the EAGLE kits.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`PEagle.loaded`).
Knobs: `form` is the shape of the draft; a tree costs the head nothing more than a chain, and every node costs the
target. Drafts may be deeper than those that the head was trained for, and then they are worse.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from torch import Tensor

from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import TargetOutput
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.eagle import EagleOptions, FamilyDrafter
from mmspec_text.drafters.heads.block import Block
from mmspec_text.drafters.heads.cache import Feed, HeadCache, Unknown
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.inside import RowsInside
from mmspec_text.drafters.heads.memory import HeadMemory
from mmspec_text.drafters.heads.rows import Rows


@dataclass(frozen=True)
class PEagleOptions(EagleOptions):
    """Options of `p-eagle`."""


class MaskedCache(HeadCache):
    """The cache of one call: behind the root's row so many `masks` are read, whose id is `token`."""

    head: Any
    token = masks = 0

    def like(self, head: Any, slots: SlotCache, levels: int) -> Self:
        new = super().like(head, slots, levels)
        new.token, new.masks = self.token, levels - 1
        return new

    def read(self, rows: Rows, units: Tensor, unknown: Unknown | None = None) -> None:
        super().read(rows, units, Unknown(self.head.unknown(), self.token, self.masks))

    def opened(self, root: Tensor) -> tuple[TargetOutput, Feed]:
        block = Block(self.head, self.states)
        return block.at_root(root), block.grow


class PEagle(FamilyDrafter):
    """Drafts with a head of P-EAGLE."""

    kind, cached = "p-eagle", MaskedCache
    read = staticmethod(partial(read_checkpoint, kind="p-eagle"))

    def __init__(self, options: PEagleOptions = PEagleOptions()) -> None:
        super().__init__(options)
        if self.checkpoint.mask_token is None:
            raise ValueError("the head has no mask token: it is no head of P-EAGLE")

    def bind(self, target: Target) -> None:
        super().bind(target)
        token, ids = self.checkpoint.mask_token, self.checkpoint.architecture.vocab
        if token >= ids:
            raise ValueError(
                f"the head {self.checkpoint.name!r} has the mask token {token}, and embeddings of {ids} ids"
            )

    def start(self, state: State, inputs: Any) -> HeadMemory:
        memory: HeadMemory = super().start(state, inputs)
        assert isinstance(memory.cache, MaskedCache)
        memory.cache.token = self.checkpoint.mask_token
        memory.cache.masks = max(self.shape.levels(state.budget.k) - 1, 0)  # of the deepest block that may be wanted
        return memory

    def inside(self, k: int, state: State) -> RowsInside:
        return RowsInside(self.network, self.shape, k, state, self.checkpoint.mask_token)
