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

import torch

from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput
from mmspec_text.drafters.eagle import EagleOptions, FamilyDrafter
from mmspec_text.drafters.heads.block import Block, drafted
from mmspec_text.drafters.heads.cache import CHUNK, Unknown
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.inside import Feed, RowsInside
from mmspec_text.drafters.heads.memory import HeadMemory, units_of, with_emitted


@dataclass(frozen=True)
class PEagleOptions(EagleOptions):
    """Options of `p-eagle`."""


class PEagleInside(RowsInside):
    """Inside of captured rounds; `beside` is the mask token."""

    def begun(self, live: Live) -> tuple[TargetOutput, Feed]:
        unknown = Unknown(self.head.unknown(), self.beside, self.levels - 1)
        self.cache.read(self.rows, units_of(live, self.rows), unknown)
        block = Block(self.head, self.cache.states)
        return block.at_root(live.root), block.grow


class PEagle(FamilyDrafter):
    """Drafts with a head of P-EAGLE."""

    kind = "p-eagle"
    everywhere = True
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

    @torch.no_grad()
    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        if self.shape.levels(k) < 1:
            return Draft.empty(state.root)
        state.memory.cache.synced(state.host_emitted)
        self._read(state.memory, state)
        return drafted(Block(self.network, state.memory.cache.states), self.shape, state, k, noise)

    def observe(self, state: State, step: Step) -> None:
        memory: HeadMemory = state.memory
        memory.unread = with_emitted(memory.unread, step, self.columns)
        if memory.unread.features.shape[1] >= CHUNK:  # many rounds without a draft
            self._read(memory, state)

    def inside(self, k: int, state: State) -> PEagleInside:
        return PEagleInside(self.network, self.shape, k, state, self.columns, self.checkpoint.mask_token)

    def fits_inside(self, state: State) -> bool:
        return True

    def _read(self, memory: HeadMemory, state: State) -> None:
        """Read the features that are not read yet, and score the deepest block that the call may want."""
        if memory.unread is None:
            return
        behind = max(self.shape.levels(state.budget.k) - 1, 0)
        unknown = Unknown(self.network.unknown(), self.checkpoint.mask_token, behind)
        memory.cache.read(memory.unread, units_of(state, memory.unread), unknown)
        memory.unread = None
