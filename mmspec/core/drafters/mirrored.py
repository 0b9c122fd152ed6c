"""A draft model that is told in the middle of the target's pass what the pass may decide: Mirror-SD (arXiv 2510.13161).

Behind one of its layers the target already has an opinion: logits from that layer's states, at the root and at every
unit of the draft. The κ likeliest units at each of these nodes are the outcomes of the round that the draft model
drafts for, while the target runs its other layers: "so many units are accepted, then this one comes". If the round ends
in one of them, its draft is ready; if not, the row waits for a new one.
A round takes t_e + max(t_v - t_e, γ · t_d), where t_e is the time up to the exit.
The paper could not be read here in full: the hypotheses are a reconstruction. Its other parts are not built: the
target's own corrections of drafts ahead, and the draft model's several units in a pass.
Guarantee: as under `match`: what the exit says chooses drafts, and never output.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from mmspec.core.drafters.overlapped import OnMiss, Overlapped, OverlappedMemory
from mmspec.core.history_processors import Prefix
from mmspec.core.overlap.ahead import Request
from mmspec.core.overlap.executors import Executor, Lane
from mmspec.core.overlap.outcomes import Even, Fan
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput


class EarlyExit(Protocol):
    """Where the target says in the middle of a pass what it may decide."""

    def once(self, hear: Callable[[Tensor], None]) -> Callable[[], None]:
        """Call `hear` in the middle of this thread's next pass, with logits of its nodes, `[batch, node, vocab]`.

        Returns:
            A function that takes this back.
        """
        ...


@dataclass
class MirroredMemory(OverlappedMemory):
    """The drafter's memory of a call."""

    forget: Callable[[], None] | None = None  # takes the last ear back; None: there is none
    fault: Exception | None = None  # what went wrong in the middle of the target's pass, which must not suffer from it


class Mirrored(Overlapped):
    """Drafts for what an early exit of the target says.

    Args:
        model: As in `Overlapped`.
        executor: As in `Overlapped`.
        branches: Units at each node that are drafted for (κ).
        fan: As in `Overlapped`; default: equally many outcomes at each node.
        on_miss: As in `Overlapped`.
    """

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
        """Where the target can be heard.

        Raises:
            ValueError: Nowhere.
        """
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
