"""`s2d`: a smaller model with several exits, each unit drafted by the first one that is sure of it.

Sorted speculative decoding (Kavehzadeh et al., arXiv 2407.01955). The draft model's first layers, up to each of
`exits`, are sub-models that share its norm and its output layer. For each unit
1. the smallest sub-model runs; its unit is taken if the largest probability is at least `sure` (τ_i, one for all);
2. otherwise the layers go on to the next exit from the states that are there, and so on; at the last exit the unit is
   taken, unless the largest probability is below `stop` (τ_stop): then the draft ends before it.
Keys of layers that a unit did not need are filled in later, for all units that wait at once
(`mmspec_zoo.sorted.sorted_target`). One draft model serves several targets. The paper trains the exits together (sorted
fine-tuning); a model that was not trained so drafts badly at its early exits, and then runs all of its layers.
The paper could not be read here: the steps are a reconstruction, and the defaults of `exits`, `sure` and `stop` are
ours. Probabilities are the model's own, before temperature and processors.
Guarantee: the rule's; sub-models and ends are chosen by distributions, before a unit is drawn from them, so that
a draft's distribution is the one of the sub-model that spoke.
Knobs: `exits` (an earlier first one drafts faster and worse), `sure` (higher runs more layers and drafts better; 0: the
smallest sub-model alone), `stop` (higher ends drafts earlier; 0: never), `k` (the longest draft).
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.drafters.draft_model import DraftModel, DraftModelMemory
from mmspec.core.drafters.shapes import Chain, Frontier, Level
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.kits.text.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec.registry.options import option
from mmspec_zoo.sorted.sorted_target import UNSURE, SortedTarget
from mmspec_zoo.specs import S2D as SPEC


@dataclass(frozen=True)
class S2DOptions(SmallModelOptions):
    exits: tuple[Annotated[int, Field(ge=1)], ...] | None = option(
        None, "layers of every sub-model, ascending; default: a half, three quarters and all of them"
    )
    sure: Annotated[float, Field(ge=0, le=1)] = option(
        0.7, "largest probability at which a sub-model speaks; higher runs more layers"
    )
    stop: Annotated[float, Field(ge=0, le=1)] = option(
        0.1, "a draft ends where the largest sub-model's largest probability is below this"
    )


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
        """True if the draft of every row has ended, on a CPU.

        Elsewhere asking would be another wait for every unit: there the smallest sub-model runs on, and nothing else.
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
        layers = self._small.layers()
        exits = options.exits or tuple(sorted({max(1, layers // 2), max(1, layers - layers // 4), layers}))
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
