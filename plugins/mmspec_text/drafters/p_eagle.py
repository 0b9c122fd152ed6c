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

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.block import Block, drafted
from mmspec_text.drafters.heads.cache import CHUNK, Unknown
from mmspec_text.drafters.heads.drafter import HeadMemory, units_of, with_emitted
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint, read_checkpoint
from mmspec_text.drafters.heads.eagle.loaded import Loaded
from mmspec_text.drafters.heads.options import head_of


@dataclass(frozen=True)
class PEagleOptions(EagleOptions):
    """Options of `p-eagle`."""


class PEagle:
    """Drafts with a head of P-EAGLE.

    Args:
        options: The head, and the form of its drafts.

    Raises:
        ValueError: No head was named, or it cannot be read.
    """

    def __init__(self, options: PEagleOptions = PEagleOptions()) -> None:
        read = head_of(options.model, "p-eagle", Checkpoint, partial(read_checkpoint, kind="p-eagle"))
        self.eagle = Eagle(replace(options, model=read))  # reads features, fits the target, tries the head
        if read.mask_token is None:
            raise ValueError("the head has no mask token: it is no head of P-EAGLE")
        self.checkpoint, self.mask_token = read, read.mask_token
        self.offers, self.needs, self.advice = self.eagle.offers, self.eagle.needs, self.eagle.advice

    @property
    def loaded(self) -> Loaded:
        """What was read, and how the head did on the first prompt."""
        return self.eagle.loaded

    def wrap(self, target: Target) -> Target:
        return self.eagle.wrap(target)

    def bind(self, target: Target) -> None:
        self.eagle.bind(target)
        head = self.checkpoint.architecture
        if self.mask_token >= head.vocab:
            raise ValueError(
                f"the head {self.checkpoint.name!r} has the mask token {self.mask_token}, and embeddings of "
                f"{head.vocab} ids"
            )

    def width(self, k: int) -> int:
        return self.eagle.width(k)

    def start(self, state: State, inputs: Any) -> HeadMemory:
        return self.eagle.start(state, inputs)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        shape, memory = self.eagle.shape, state.memory
        if shape.levels(k) < 1:
            return Draft.empty(state.root)
        memory.cache.slots.synced(state.host_emitted)
        self._read(memory, state)
        return drafted(Block(self.eagle.network, memory.cache.states), shape, state, k, noise)

    def observe(self, state: State, step: Step) -> None:
        memory: HeadMemory = state.memory
        memory.unread = with_emitted(memory.unread, step, self.eagle.columns)
        if memory.unread.features.shape[1] >= CHUNK:  # many rounds without a draft
            self._read(memory, state)

    def _read(self, memory: HeadMemory, state: State) -> None:
        """Read the features that are not read yet, and score the deepest block that the call may want."""
        if memory.unread is None:
            return
        behind = max(self.eagle.shape.levels(state.budget.k) - 1, 0)
        unknown = Unknown(self.eagle.network.unknown(), self.mask_token, behind)
        memory.cache.read(memory.unread, units_of(state, memory.unread), unknown)
        memory.unread = None
