"""`specmemo`: a smaller model drafts a tree, and the caches of both models stay below a number of bytes.

SpecMemo (arXiv 2506.01986). When a call begins, the text's final length S is known: the prompt and the units that are
wanted. With κ as in `mmspec.hosts.memory`, in whole blocks of slots:
1. κ_T · (S + 1) must fit, or the call is refused: that is plain decoding, the floor.
2. If κ_T · (S + 1) + κ_D · (S + 16) does not fit, there are no drafts, and the draft model's cache is not made. (The
   draft model catches up on known units in passes of 16.)
3. What is left are slots for nodes of drafts, up to as many as a whole draft has at the end of the text.
4. In every round the draft is the longest one, of at most `k` units a path, whose nodes fit behind the text so far, in
   both caches: N ≤ slots_T - length, and γ + 1 ≤ slots_D - length. Slots of refused nodes are free again after a round.
The paper could not be read here: the steps are a reconstruction from our notes on it. It counts scores and masks, too;
`memory_budget` counts caches alone, and those to the byte (`report.cache_bytes`).
Guarantee: the rule's; the budget decides the length of drafts, and reads no unit.
Knobs: `memory_budget` (a small one shortens drafts near the end of the text, a smaller one all of them), `nodes` and
`width` of the tree, which the budget leaves as they are.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import ByteSize, Field

from mmspec.core.drafters.draft_model import CATCH_UP, DraftModel, DraftModelMemory
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.memory import Memory, cost, held
from mmspec.hosts.self_check import checked
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.small_model import in_target_ids, load_small_model
from mmspec.kits.text.tree_form import DraftTreeOptions
from mmspec.registry.options import option
from mmspec_zoo.specs import SPECMEMO


@dataclass(frozen=True)
class SpecMemoOptions(DraftTreeOptions):
    memory_budget: Annotated[ByteSize, Field(gt=0)] | None = option(
        None, "bytes of the caches of both models, as a number or like 2GiB, 500MB; less shortens drafts"
    )


class SpecMemo(DraftModel):
    """Drafts trees with a smaller transformers model, within a budget of bytes."""

    def __init__(self, options: SpecMemoOptions = SpecMemoOptions()) -> None:
        if options.memory_budget is None:
            raise ValueError("specmemo needs the bytes that caches may have: memory_budget=2GiB, for example")
        self.options, self.budget, self.advice = options, int(options.memory_budget), options.advice
        small = load_small_model(options, SPECMEMO.name)
        self._small = small.with_memory(Memory(self.budget))
        super().__init__(self._small, options.build_shape())

    def wrap(self, target: Target) -> Target:
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"specmemo counts the bytes of key caches, and {type(target).__name__} does not tell them")
        return target.with_memory(Memory(self.budget, self._needed))

    def bind(self, target: Target) -> None:
        if in_target_ids(self._small, target, self.options) is not self._small:
            raise ValueError(
                "specmemo's draft model must have the target's tokenizer: with another one a unit may be several "
                "tokens, and nobody knows before the call how many slots they need"
            )
        super().bind(target)

    def start(self, state: State, inputs: Any) -> Any:
        """The memory of a draft model; None where its cache does not fit, and nothing is drafted."""
        slots: SlotCache = state.cache.slots
        state.report.cache_bytes = held(slots)
        if held(slots) + self._needed(len(slots.begun), max(slots.begun) + state.limit) > self.budget:
            return None
        cache = self._small.start(inputs, state.limit, CATCH_UP).cache
        state.report.cache_bytes += held(cache.slots)
        return DraftModelMemory(cache, self.shape, CATCH_UP, torch.zeros_like(state.emitted))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        fitting = 0 if state.memory is None else self._fitting(state, k)
        return super().propose(state, fitting, noise) if fitting else Draft.empty(state.root)

    def observe(self, state: State, step: Step) -> None:
        if state.memory is not None:
            super().observe(state, step)

    def _needed(self, rows: int, units: int) -> int:
        """Bytes of the draft model's cache."""
        return cost(checked(self._small.model_info)).bytes(rows, units + CATCH_UP)

    def _fitting(self, state: State, k: int) -> int:
        """The longest draft for which both caches have room, of at most `k` units a path; 0: none."""
        target, small = (_room(cache.slots, state) for cache in (state.cache, state.memory.cache))
        lengths = range(k, 0, -1)
        return next((n for n in lengths if self.shape.width(n) < target and self.shape.fed(n) < small), 0)


def _room(slots: SlotCache, state: State) -> int:
    """Nodes for which there is room behind the longest row's text, the root included."""
    texts = zip(slots.begun, [*state.host.emitted] * (len(slots.begun) // state.rows), strict=True)
    return min(slots.most - max(begun + new - 1 for begun, new in texts), slots.most_nodes)
