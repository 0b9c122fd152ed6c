"""`layer-skip`: the target's first layers and its output layer draft a chain.

LayerSkip (Elhoushi et al., arXiv 2404.16710), self-speculative decoding: drafts leave the model at layer E, and the
whole model verifies them, from the states that the draft left behind layer E (`resumed`). The paper trains models whose
early layers can be read, as `mmspec train drafter --kind layer-skip` does; others draft badly.
Guarantee: the rule's; under rules that need it, a draft has its distribution.
Knobs: `exit` (later drafts better and costs more); `k` (units of a draft).
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.registry.options import option
from mmspec_zoo.self_drafting.resumed import ExitDrafting
from mmspec_zoo.self_drafting.shortened import ReadShare, SelfDrafting
from mmspec_zoo.specs import LAYER_SKIP


@dataclass(frozen=True)
class LayerSkipOptions:
    exit: Annotated[int, Field(ge=1)] | None = option(
        None, "layers that a draft runs; default: a quarter of the target's"
    )


class LayerSkip:
    needs, offers = LAYER_SKIP.needs, LAYER_SKIP.offers
    runs_target = True

    def __init__(self, options: LayerSkipOptions = LayerSkipOptions()) -> None:
        self.options = options

    def wrap(self, target: Target) -> Target:
        """The target, verifying from where drafts left it."""
        layers = SelfDrafting(target, "layer-skip").layers
        self._exit = self.options.exit if self.options.exit is not None else max(1, layers // 4)
        self._own = ExitDrafting(target, "layer-skip", self._exit)
        return self._own.target

    def bind(self, target: Target) -> None:
        """Do nothing: the target was wrapped."""

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> ReadShare:
        return ReadShare()

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        return self._own.draft(self._exit, state, k, noise)

    def observe(self, state: State, step: Step) -> None:
        """Does nothing: a draft leaves nothing behind."""
