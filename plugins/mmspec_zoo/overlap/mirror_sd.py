"""`mirror-sd`: a smaller model drafts for what an early exit of the target says about the round (arXiv 2510.13161).

Behind one of its layers the target already has an opinion: logits from that layer's states, at the root and at every
unit of the draft, by its own norm and output layer. (A model that was trained so that early layers can be read says
more.) The κ likeliest units at each of these nodes are the outcomes of the round that the draft model drafts for, while
the target runs its other layers: "so many units are accepted, then this one comes". If the round ends in one of them,
its draft is ready; if not, the row waits for a new one.
A round takes t_e + max(t_v - t_e, γ · t_d), where t_e is the time up to the exit.
What the exit says corrects drafts ahead, as in the paper. Its speculative streaming, several units a pass of the draft
model, needs one that was trained for it: one that fills in masks, as `pard` takes it, drafts all units of all outcomes
in one pass, so that a round takes t_e + max(t_v - t_e, t_d). (The paper trains streams of attention for that.)
Guarantee: `match`'s, also where the process dies or does not answer: what the exit says chooses drafts, and never
output.
Knobs: `k`; `exit` (layers of the target before it: earlier leaves the small model more time, later says more);
`branches` (the paper's κ: units that are drafted for at every node of the draft); `executor` (as of `pearl`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Annotated, Any, Protocol

from pydantic import Field
from torch import Tensor, nn

from mmspec.core.history_processors import Prefix
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput
from mmspec.hosts.target import TransformersTarget
from mmspec.registry.options import option
from mmspec_zoo.overlap.ahead import Request
from mmspec_zoo.overlap.executors import Executor, Lane
from mmspec_zoo.overlap.outcomes import Even, Fan
from mmspec_zoo.overlap.overlapped import AheadOptions, DraftsAhead, OnMiss, Overlapped, OverlappedMemory
from mmspec_zoo.specs import MIRROR_SD
from mmspec_zoo.sublayers import SubLayers


class EarlyExit(Protocol):
    """Where the target says in the middle of a pass what it may decide."""

    def once(self, hear: Callable[[Tensor], None]) -> Callable[[], None]:
        """Call `hear` in the middle of this thread's next pass, with logits of its nodes, `[batch, node, vocab]`;
        returns a function that takes this back.
        """


@dataclass
class MirroredMemory(OverlappedMemory):
    forget: Callable[[], None] | None = None  # takes the last ear back; None: there is none
    fault: Exception | None = None  # what went wrong in the middle of the target's pass, which must not suffer from it


class Mirrored(Overlapped):
    """Drafts for what an early exit of the target says: by default equally many outcomes at each node, `branches`."""

    within = "hears an early exit"

    def __init__(
        self,
        model: Target,
        executor: Executor | None = None,
        branches: int = 2,
        fan: Fan | None = None,
        on_miss: OnMiss = "draft",
    ) -> None:
        super().__init__(model, executor, branches, fan if fan is not None else Even(), on_miss)

    def exit_of(self, target: Target) -> EarlyExit:
        """Where the target can be heard."""
        raise NotImplementedError

    def bind(self, target: Target) -> None:
        super().bind(target)
        self._exit = self.exit_of(target)

    def outcomes(self, width: int) -> int:
        return self.branches * (width + 1)

    def start(self, state: State, inputs: Any) -> MirroredMemory:
        lane: Lane = super().start(state, inputs).lane
        return MirroredMemory(lane)

    def observe(self, state: State, step: Step) -> None:
        memory: MirroredMemory = state.memory
        if memory.forget is not None:
            memory.forget()  # a pass that did not come by the exit
        if memory.fault is not None:
            raise memory.fault
        super().observe(state, step)

    def _ahead(self, state: State, draft: Draft, request: Request) -> None:
        memory: MirroredMemory = state.memory
        memory.forget = self._exit.once(partial(self._heard, state, draft, request))

    def _heard(self, state: State, draft: Draft, request: Request, logits: Tensor) -> None:
        """Ask for what the target may decide; `logits [batch, node, vocab]` begin with the root and the draft."""
        memory: MirroredMemory = state.memory
        try:
            rooted = draft.rooted(state.root, request.pending)
            if logits.shape[1] < rooted.nodes:
                return  # a policy has shortened the draft since
            known = [request.prompt_length + count for count in request.host_emitted]
            prefix = Prefix(request.units, known, request.emitted)
            scores = request.scoring(TargetOutput(logits[:, : rooted.nodes]), rooted, prefix)
            ranked = request.ranks(scores.distribution, rooted.drafted)
            self._submit(state, replace(request, ranked=ranked))
        except Exception as error:  # the target's pass goes on
            memory.fault = error


@dataclass(frozen=True)
class LayerExit:
    """Logits from the states behind a layer, by the model's own norm and output layer."""

    target: TransformersTarget
    layer: int  # how many layers are run before

    def __post_init__(self) -> None:
        SubLayers(self.target.model_info).from_layer(self.layer)  # refuses what does not exist

    def once(self, hear: Callable[[Tensor], None]) -> Callable[[], None]:
        """Passes of other threads are not heard."""
        language, output, thread = self.target.model_info.language, self.target.lend().output, get_ident()

        def read(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if get_ident() == thread:
                handle.remove()
                states = args[0] if args else kwargs["hidden_states"]
                hear(output(language.final_norm(states)))

        handle = language.layers[self.layer].register_forward_pre_hook(read, with_kwargs=True)
        return handle.remove


@dataclass(frozen=True)
class MirrorOptions(AheadOptions):
    branches: int = option(2, "units at every node of the draft that are drafted for")
    exit: Annotated[int, Field(ge=1)] | None = option(
        None, "layers of the target before its exit; default: half of them"
    )


class MirrorSD(DraftsAhead, Mirrored):
    """Drafts for what the target's exit says; a row whose round had another outcome waits for its draft."""

    needs, offers = MIRROR_SD.needs, MIRROR_SD.offers

    def __init__(self, options: MirrorOptions = MirrorOptions()) -> None:
        super().__init__(options, MIRROR_SD.name, None, "draft")
        self._layer = options.exit

    def exit_of(self, target: Target) -> EarlyExit:
        """The target's own output layer behind one of its layers."""
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"mirror-sd reads the layers of a transformers model; {type(target).__name__} is none")
        layers = self._layer if self._layer is not None else max(1, target.layers() // 2)
        return LayerExit(target, layers)
