"""Drafts of a head that predicts blocks of units: Falcon.

Gao et al., AAAI 2025 (doi 10.1609/aaai.v39i22.34566). The head is one of EAGLE-1 whose feature lies k places ahead, so
that one pass scores k units (`heads/falcon/cache.py`); the units of a block are independent of each other, and the next
block reads the path that was chosen. An LSTM, run over each row alone, joins embedding and feature.
The released code does not run as it is: it passes on the pair that torch's LSTM returns. This file follows it with the
output alone. Its LSTM has the batch on the axis of time, so that with one row it has no memory of other units. There
the rows of known units form blocks that depend on how many were accepted; here the last k of them always form one.
A checkpoint: EAGLE-1's tensors without `fc`, `lstm.weight_ih_l0` …, and in its config `k_mask`, which is k.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Behind fewer than k known units nothing is drafted.
Knobs: `form` is the shape of the draft. Every k-th level costs a pass of the head.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mmspec.core.drafters.growing import grown
from mmspec.core.hidden import Lends
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.drafter import of_prompt, units_of, with_emitted
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint, read_checkpoint
from mmspec_text.drafters.heads.eagle.loaded import Loaded
from mmspec_text.drafters.heads.falcon.cache import BlockCache
from mmspec_text.drafters.heads.options import HeadOptions, head_of
from mmspec_text.drafters.heads.rows import Rows


@dataclass(frozen=True)
class FalconOptions(HeadOptions):
    """Options of `falcon`."""


@dataclass
class FalconMemory:
    """What the head keeps of a call."""

    cache: BlockCache
    rows: Rows  # the features that it has not read yet, and before them the last block's; after a draft these alone
    unread: bool = True  # whether there are some that it has not read


class Falcon:
    """Drafts with a head of Falcon.

    Args:
        options: The head, and the form of its drafts.

    Raises:
        ValueError: No head was named, or it cannot be read.
    """

    example = "mmspec_text.head_example:falcon"

    def __init__(self, options: FalconOptions = FalconOptions()) -> None:
        read = head_of(options.model, "falcon", Checkpoint, partial(read_checkpoint, kind="falcon"))
        form = {name: value for name, value in vars(options).items() if name not in ("model", "probe")}
        self.eagle = Eagle(replace(EagleOptions(**form), model=read, probe=False))  # reads features, fits the target
        self.checkpoint, self.block = read, read.architecture.block
        self.offers, self.needs, self.advice = self.eagle.offers, self.eagle.needs, self.eagle.advice

    @property
    def loaded(self) -> Loaded:
        """What was read."""
        return self.eagle.loaded

    def wrap(self, target: Target) -> Target:
        return self.eagle.wrap(target)

    def bind(self, target: Target) -> None:
        assert isinstance(target, Lends)
        self.eagle.bind(target)
        self._target = target

    def width(self, k: int) -> int:
        return self.eagle.width(k)

    def start(self, state: State, inputs: Any) -> FalconMemory:
        lent, network, shape = self._target.lend(), self.eagle.network, self.eagle.shape
        network.join(lent.embedding, lent.output, lent.device, lent.dtype)
        drafted = self.block * (1 + shape.fed(state.budget.k))
        most = state.prompt_length + state.limit + drafted + 2
        cache = BlockCache(network, self.block, state.rows, most, state.root.device)
        return FalconMemory(cache, of_prompt(state, self.eagle.columns))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory, shape = state.memory, self.eagle.shape
        levels = shape.levels(k)
        if levels < 1:
            return Draft.empty(state.root)
        if memory.unread:
            memory.cache.read(memory.rows, units_of(state, memory.rows))
            kept = memory.rows.features[:, -self.block :]
            memory.rows, memory.unread = Rows(kept, memory.rows.count.clamp(max=self.block)), False
        cache = memory.cache
        draft, _, _ = grown(shape, state, k, levels, noise, cache.at_root(), 1, cache.grow)
        return replace(draft, valid=draft.valid & ~cache.short[:, None])

    def observe(self, state: State, step: Step) -> None:
        memory: FalconMemory = state.memory
        memory.rows, memory.unread = with_emitted(memory.rows, step, self.eagle.columns), True
