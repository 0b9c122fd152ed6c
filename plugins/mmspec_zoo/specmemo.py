"""`specmemo`: a smaller model drafts a tree, and both models with all that they need stay below a number of bytes.

SpecMemo (arXiv 2506.01986). When a call begins, the text's final length S is known: the prompt and the units that are
wanted. With W for weights and their copies, κ and the work P of a pass as in `mmspec.hosts.memory`, in whole blocks of
slots:
1. W + κ_T · (S + 1) + P_T must fit, where P_T is the larger one of reading the prompt and of scoring one unit, or the
   call is refused: that is plain decoding, the floor.
2. If κ_D · (S + 16) and the work of the smallest tree do not fit beside it, there are no drafts, and the draft model's
   cache is not made. (The draft model catches up on known units in passes of 16.)
3. What is left are slots for nodes of drafts, up to as many as a whole draft has at the end of the text; then nodes:
   the tree is the first that fits of `nodes`, a half, a quarter … of them, down to `k`; then paths have k - 1 units …
4. In every round the draft is the longest one whose nodes fit behind the text so far, in both caches:
   N ≤ slots_T - length, and γ + 1 ≤ slots_D - length. Slots of refused nodes are free again after a round.
The paper's text could not be read here: the steps are a reconstruction from notes on it. `report.cache_bytes` counts
caches to the byte, and `report.memory_bytes` all of it, up to what torch and Python take for themselves.
Guarantee: the rule's; the budget decides the sizes of drafts, and reads no unit.
Knobs: `memory_budget` (a small one shortens drafts near the end of the text, a smaller one has smaller trees), `nodes`
(the most), `width`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import ByteSize, Field

from mmspec.core.drafters.draft_model import CATCH_UP, DraftModel, DraftModelMemory
from mmspec.core.drafters.shapes import Shape
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.core.warp import Warp
from mmspec.hosts.memory import Memory, cost, held, weights
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
        None, "bytes of both models, their caches and passes, as a number or like 2GiB, 500MB; less shortens drafts"
    )

    def smaller(self, k: int) -> Iterator[tuple[Shape, int]]:
        """The shape of whole trees, with paths of `k` units, then smaller ones."""
        sized = self.form in ("rerank", "greedy", "heap")
        for n in range(k, 0, -1):
            sizes = [self.nodes >> halved for halved in range(self.nodes.bit_length())] if sized else [self.nodes]
            yield from ((replace(self, nodes=nodes).build_shape(), n) for nodes in sizes if not sized or nodes >= n)


@dataclass
class SpecMemoMemory(DraftModelMemory):
    most: int = 0  # units of a path


class SpecMemo(DraftModel):
    """Drafts trees with a smaller transformers model, within a budget of bytes."""

    def __init__(self, options: SpecMemoOptions = SpecMemoOptions()) -> None:
        if options.memory_budget is None:
            raise ValueError("specmemo needs the bytes that a call may have: memory_budget=2GiB, for example")
        self.options, self.budget, self.advice = options, int(options.memory_budget), options.advice
        small = load_small_model(options, SPECMEMO.name)
        self._small = small.with_memory(Memory(self.budget))
        super().__init__(self._small, options.build_shape())

    def wrap(self, target: Target) -> Target:
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"specmemo counts the bytes of key caches, and {type(target).__name__} does not tell them")
        target_passes, own = checked(target.model_info), checked(self._small.model_info)
        self._costs, self._weights = (cost(target_passes), cost(own)), weights(target_passes, own)
        return target.with_memory(Memory(self.budget, self._weights, self._beside))

    def bind(self, target: Target) -> None:
        if in_target_ids(self._small, target, self.options) is not self._small:
            raise ValueError(
                "specmemo's draft model must have the target's tokenizer: with another one a unit may be several "
                "tokens, and nobody knows before the call how many slots they need"
            )
        super().bind(target)

    def start(self, state: State, inputs: Any) -> Any:
        """The memory of a draft model; None where nothing fits beside the target, and nothing is drafted."""
        slots: SlotCache = state.cache.slots
        rows, longest, copies = len(slots.begun), max(slots.begun), _copies(state.warp)
        call, own = (rows, longest, longest + state.limit, slots.most), self._weights + held(slots)
        sized = (
            (shape, n, self._beside(*call, nodes=self._nodes(state, shape, n), fed=_level(shape, n), copies=copies))
            for shape, n in self.options.smaller(state.budget.k)
        )
        shape, most, beside = next((each for each in sized if own + each[2] <= self.budget), (self.shape, 0, 0))
        plain = self._costs[0].work(rows, self._nodes(state, shape, 0), slots.most, copies)
        report, reading = state.report, self._costs[0].reading(rows, longest)
        report.cache_bytes, report.memory_bytes = held(slots), own + max(reading, plain, beside)
        if not most:
            return None
        cache = self._small.start(inputs, state.limit, CATCH_UP).cache
        report.cache_bytes += held(cache.slots)
        return SpecMemoMemory(cache, shape, CATCH_UP, torch.zeros_like(state.emitted), most=most)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        fitting = 0 if state.memory is None else self._fitting(state, min(k, state.memory.most))
        return super().propose(state, fitting, noise) if fitting else Draft.empty(state.root)

    def observe(self, state: State, step: Step) -> None:
        if state.memory is not None:
            super().observe(state, step)

    def _beside(
        self, rows: int, longest: int, units: int, slots: int, *, nodes: int = 2, fed: int = 1, copies: int = 1
    ) -> int:
        """Bytes of the draft model's cache, and of the largest pass beside it, with drafts of `nodes`, of which it is
        `fed` so many at once; a target has `slots` a row, prompts of up to `longest` units, and `units` in the end.
        """
        (target, own), behind = self._costs, units + CATCH_UP
        drafting = own.work(rows, max(fed, CATCH_UP), behind, copies)
        return own.bytes(rows, behind) + max(
            own.reading(rows, longest), drafting, target.work(rows, nodes, slots, copies)
        )

    def _nodes(self, state: State, shape: Shape, k: int) -> int:
        """The nodes of a pass that verifies drafts of `k` units a path."""
        return state.budget.width if state.budget.fixed else 1 + shape.width(k)

    def _fitting(self, state: State, k: int) -> int:
        """The longest draft for which both caches have room, of at most `k` units a path; 0: none."""
        shape: Shape = state.memory.shape
        target, small = (_room(cache.slots, state) for cache in (state.cache, state.memory.cache))
        return next((n for n in range(k, 0, -1) if shape.width(n) < target and shape.fed(n) < small), 0)


def _level(shape: Shape, k: int) -> int:
    """The most nodes that a draft model is fed at once, for paths of `k` units."""
    return max((shape.fed(n) - shape.fed(n - 1) for n in range(2, k + 1)), default=1)


def _copies(warp: Warp) -> int:
    """The float32 copies of scores that exist at once, as counted in passes: of the likeliest unit alone, of draws in
    float64, and of sorted scores beside these.
    """
    return 1 if not warp.sample else 8 if warp.processors else 5


def _room(slots: SlotCache, state: State) -> int:
    """Nodes for which there is room behind the longest row's text, the root included."""
    texts = zip(slots.begun, [*state.host.emitted] * (len(slots.begun) // state.rows), strict=True)
    return min(slots.most - max(begun + new - 1 for begun, new in texts), slots.most_nodes)
