"""A draft model whose first layers, up to several exits, are sub-models: the smallest one that is sure speaks.

The sub-models share norm and output layer. A pass runs the layers of the smallest one. Where its likeliest unit has
less than `sure`, the layers go on to the next exit, from the states that are there (`waiting`). Units
whose states were not needed further wait for the other layers (`waiting`), which run over them with the
next unit that needs them, at the latest when `ROOM` units wait.

Every row chooses for itself. A part of the model runs for all rows, or for none: whether some row needs it is read from
the device. On a CPU that is asked at every exit. Elsewhere, where reading is a wait, it is asked once for each pass: if
some row goes on behind the first exit, all other layers run, and rows still speak at the exit where they are sure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec_zoo.sorted.waiting import SplitPass, Waiting, last_valid, split
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
