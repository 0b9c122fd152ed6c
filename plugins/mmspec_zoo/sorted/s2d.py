"""`s2d`: a smaller model with several exits, each unit drafted by the first one that is sure of it.

Sorted speculative decoding (Kavehzadeh et al., arXiv 2407.01955). The draft model's first layers, up to each of
`exits`, are sub-models that share its norm and its output layer. For each unit
1. the smallest sub-model runs; its unit is taken if the largest probability is at least `sure` (τ_i, one for all);
2. otherwise the layers go on to the next exit from the states that are there, and so on; at the last exit the unit is
   taken, unless the largest probability is below `stop` (τ_stop): then the draft ends before it.
Keys of layers that a unit did not need are filled in later, for all units that wait at once (`waiting`): with the next
unit that needs these layers, at the latest when `ROOM` units wait. Every row chooses for itself, but a part of the
model runs for all rows, or for none: whether some row needs it is read from the device, on a CPU at every exit.
Elsewhere, where reading is a wait, it is asked once for each pass: if some row goes on behind the first exit, all other
layers run, and rows still speak at the exit where they are sure. One draft model serves several targets. Its exits
are trained together (sorted fine-tuning, `mmspec train drafter --kind sorted`), and its config names them; a model that
was not trained so drafts badly at its early exits, and then runs all of its layers.
Only a summary of the paper could be read here: the steps are a reconstruction, and `sure`, `stop` and the `exits` of a
model that names none are ours. Probabilities are the model's own, before temperature and processors.
Guarantee: the rule's; sub-models and ends are chosen by distributions, before a unit is drawn from them, so that
a draft's distribution is the one of the sub-model that spoke.
Knobs: `exits` (an earlier first one drafts faster and worse), `sure` (higher runs more layers and drafts better; 0: the
smallest sub-model alone), `stop` (higher ends drafts earlier; 0: never), `k` (the longest draft).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.draft_model import DraftModel, DraftModelMemory
from mmspec.core.drafters.shapes import Chain, Frontier, Level
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec.kits.text.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec.registry.options import option
from mmspec_zoo.sorted.waiting import SplitPass, Waiting, last_valid, split
from mmspec_zoo.specs import S2D as SPEC
from mmspec_zoo.sublayers import SubLayers

ROOM = 16
"""Most committed units that wait for a part of the model before it is run over them; a few more wait until a round."""
UNSURE = -1  # in the place of a sub-model: the largest one spoke, and it was less sure than `stop`


@dataclass
class SortedTargetCache:
    # The model's own cache; a unit that waits has no keys yet in the layers that it waits for
    cache: TransformersTargetCache
    places: int  # places that a row needs for what waits
    # What waits for each part behind the first one; empty before the first pass
    waiting: list[Waiting] = field(default_factory=list)

    @property
    def late(self) -> bool:
        """True if more than `ROOM` units may wait for the last part."""
        return sum(each.most for each in self.waiting) > ROOM


class SortedTarget:
    """A draft model, scored by the smallest of its sub-models that is sure.

    A row's scores are its last valid node's, from the pass's first node on; at other nodes they are the smallest
    sub-model's. `TargetOutput.auxiliary [batch, node]` is the number of the sub-model that spoke, or `UNSURE`. For a
    sub-model to speak, the likeliest unit must have the probability `sure`, under a softmax of the scores as the model
    gives them; the largest one speaks always, and is `UNSURE` below the probability `stop`. Refuses layers whose state
    cannot take a draft back.
    """

    def __init__(self, target: TransformersTarget, exits: Sequence[int], sure: float, stop: float) -> None:
        if target.model_info.ops:
            raise ValueError(
                f"{type(target.model).__name__} has recurrent layers, which cannot run later over units that waited; "
                "use a draft model of attention layers alone"
            )
        if len(exits) < 2:
            raise ValueError("a model with one exit has no sub-models to choose from; the method draft-model takes it")
        self.target, self.sure, self.stop = target, sure, stop
        self.parts = split(SubLayers(target.model_info), exits)
        target.keep_all = True  # layers run from further back than a ring may reach
        self.offers = target.offers - {"truncate"}
        self.vocab: int | None = target.vocab
        self.context: int | None = target.context

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """Prefill, through all layers; see `TransformersTarget.start`."""
        # A row has as many nodes of a draft that was kept, behind `ROOM` units, and as many of the next one.
        places = ROOM + 2 * width
        begun = self.target.start(inputs, limit, places)
        return replace(begun, cache=SortedTargetCache(begun.cache, places))

    @torch.inference_mode()
    def verify(self, cache: SortedTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        guidance = cache.cache.guidance
        units, index, valid = (
            guidance.physical(draft.units),
            guidance.index(draft.index),
            guidance.physical(draft.valid),
        )
        guidance.slots.scratch = not draft.index.is_chain
        late = not first and cache.late
        logits, states = self._run(self.parts[0], cache, units[:, first:], index, first, valid[:, first:], None)
        if not cache.waiting:
            cache.waiting = [Waiting.none(states, units, cache.places) for _ in self.parts[1:]]
        elif not first:
            for each in cache.waiting:
                each.begin()
        cache.waiting[0].add(states, units[:, first:], torch.zeros_like(guidance.slots.length), 0, draft.nodes - first)
        output = guidance.output(logits)
        assert output.logits is not None
        last = last_valid(draft)
        node = (last - first).clamp(min=0)[:, None]
        spoken = output.take(node)
        spoke = torch.zeros_like(node)
        likeliest = _confidence(spoken)
        unsure = ((last >= first) & (last >= 0))[:, None] & (likeliest < self.sure)
        asked = False
        for number, part in enumerate(self.parts[1:], 1):
            known = guidance.slots.free_to_read or not asked
            if not late and known and not bool(unsure.any()):
                break
            asked = True
            waiting = cache.waiting[number - 1]
            place = guidance.physical(last)[:, None] - waiting.begun + waiting.count[:, None]
            logits = self._go_on(number, part, cache, index, valid)
            place = place.clamp(0, logits.shape[1] - 1)
            heard = guidance.output(take_nodes(logits, place))
            spoken = _instead(unsure, heard, spoken)
            spoke = torch.where(unsure, number, spoke)
            likeliest = torch.where(unsure, _confidence(heard), likeliest)
            unsure = unsure & (likeliest < self.sure)
        spoke = torch.where((spoke == len(self.parts) - 1) & (likeliest < self.stop), UNSURE, spoke)
        here = torch.arange(first, draft.nodes, device=node.device) == last[:, None]
        return replace(_instead(here, spoken, output), auxiliary=torch.where(here, spoke, 0))

    @torch.inference_mode()
    def commit(self, cache: SortedTargetCache, path: Tensor, count: Tensor) -> None:
        guidance = cache.cache.guidance
        for each in cache.waiting:
            each.commit(guidance.physical(path), guidance.physical(count))
        self.target.commit(cache.cache, path, count)

    def synced(self, cache: SortedTargetCache, emitted: Sequence[int]) -> None:
        self.target.synced(cache.cache, emitted)

    def truncate(self, cache: SortedTargetCache, length: Tensor) -> None:
        raise NotImplementedError("units that wait for some of the layers cannot be taken back")

    def _go_on(self, number: int, part: SplitPass, cache: SortedTargetCache, tree: TreeIndex, valid: Tensor) -> Tensor:
        """Run a part over all that waits for it; logits `[row, place, vocab]`. What it leaves waits for the next part.
        The tree and `valid [row, node]` are the draft's, for the rows of the cache.
        """
        slots, waiting = cache.cache.slots, cache.waiting[number - 1]
        length, width = slots.length, waiting.width
        units, states = waiting.units[:, :width], waiting.states[:, :width]
        slots.set_length(length - waiting.count)
        try:
            index, there = waiting.index(tree), waiting.valid(valid)
            logits, left = self._run(part, cache, units, index, waiting.begun, there, states)
        finally:
            slots.set_length(length)
        if number < len(cache.waiting):
            cache.waiting[number].add(left, units, waiting.count, waiting.most, waiting.nodes)
        waiting.ran()
        return logits

    @staticmethod
    def _run(
        part: SplitPass,
        cache: SortedTargetCache,
        units: Tensor,
        index: TreeIndex,
        first: int,
        valid: Tensor,
        states: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Logits, and states behind a part, at its nodes; see `Passes` and `SplitPass.alone`."""
        with part.alone(states) as record:
            passes = cache.cache.passes
            logits = passes(cache.cache.slots, units, index, first=first, valid=valid, decoding=True)
        found = record.states
        assert found is not None, "a part keeps the states behind it"
        return logits, found


def _confidence(output: TargetOutput) -> Tensor:
    """The largest probability at every node, `[batch, node]` float32."""
    assert output.logits is not None
    return output.logits.float().softmax(-1).amax(-1)


def _instead(where: Tensor, ours: TargetOutput, theirs: TargetOutput) -> TargetOutput:
    """The logits of the one output where `where [batch, node]`, else of the other; both with guidance, or without."""
    at = where[..., None]
    logits = torch.where(at, ours.logits, theirs.logits)  # type: ignore[arg-type]
    null = None if theirs.null is None else torch.where(at, ours.null, theirs.null)  # type: ignore[arg-type]
    return TargetOutput(logits=logits, null=null)


@dataclass(frozen=True)
class S2DOptions(SmallModelOptions):
    exits: tuple[Annotated[int, Field(ge=1)], ...] | None = option(
        None, "layers of every sub-model, ascending; default: those it learnt, or a half, three quarters and all"
    )
    sure: Annotated[float, Field(ge=0, le=1)] = option(
        0.7, "largest probability at which a sub-model speaks; higher runs more layers"
    )
    stop: Annotated[float, Field(ge=0, le=1)] = option(
        0.1, "a draft ends where the largest sub-model's largest probability is below this"
    )


def _own_exits(small: TransformersTarget) -> tuple[int, ...]:
    """The exits that a model was trained with, by its config, or the usual ones."""
    layers, named = small.layers(), small.model.config.to_dict().get("sorted_exits")
    if named is None:
        return tuple(sorted({max(1, layers // 2), max(1, layers - layers // 4), layers}))
    if not isinstance(named, list) or not all(type(each) is int for each in named):
        raise ValueError(f"sorted_exits in the draft model's config is a list of numbers of layers, not {named!r}")
    return tuple(named)


@dataclass(frozen=True)
class StoppedChain(Chain):
    """A chain that ends where the draft model says that its largest sub-model is unsure."""

    ends = True

    def level(self, frontier: Frontier, depth: int) -> Level:
        level = super().level(frontier, depth)
        assert frontier.auxiliary is not None, "a sorted target says which sub-model spoke"
        valid = level.valid & (frontier.auxiliary != UNSURE)
        valid = valid if frontier.carried is None else valid & frontier.carried
        return replace(level, valid=valid, carried=valid)

    def ended(self, level: Level) -> bool:
        """True if the draft of every row has ended, on a CPU; elsewhere asking would be another wait for every unit:
        there the smallest sub-model runs on, and nothing else.
        """
        return level.valid.device.type == "cpu" and super().ended(level)


@dataclass
class S2DMemory(DraftModelMemory):
    # `[batch]` bool: rows that are finished, and need no scores
    done: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))


class S2D(DraftModel):
    """Drafts each unit by the smallest sub-model that is sure."""

    def __init__(self, options: S2DOptions = S2DOptions()) -> None:
        self.options, self._small = options, load_small_model(options, SPEC.name)
        exits = options.exits or _own_exits(self._small)
        self._sorted = SortedTarget(self._small, exits, options.sure, options.stop)
        super().__init__(self._sorted, StoppedChain())

    def bind(self, target: Target) -> None:
        self.model = in_target_ids(self._small, target, self.options, self._sorted)
        super().bind(target)

    def start(self, state: State, inputs: Any) -> S2DMemory:
        return S2DMemory(**vars(super().start(state, inputs)), done=state.done)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: S2DMemory = state.memory
        memory.done = state.done
        return super().propose(state, k, noise)

    def _feed(self, memory: DraftModelMemory, draft: Draft, first: int) -> TargetOutput:
        """One pass; finished rows have no valid node in it, so that no sub-model runs because of them."""
        assert isinstance(memory, S2DMemory)
        return super()._feed(memory, replace(draft, valid=draft.valid & ~memory.done[:, None]), first)
