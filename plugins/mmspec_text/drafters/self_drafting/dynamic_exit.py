"""`del`: the target's first layers draft, and where they are left, and for how long, is chosen in every round.

DEL (Entezari Zarch et al., arXiv 2504.05598): the exit and the length are those with the most expected units per layer
that runs (token-per-layer), by acceptance rates that shadow tokens give without a pass (`exits`). A draft ends early
where the drafter is less sure than between the means of units that were refused and accepted.
Drafts of the paper also hand their states to verification, which then runs the other layers alone; here verification
runs all layers.
Guarantee: that of the rule; exit and length are chosen from what rounds before have shown, and a draft's end from
the distribution before the unit that it leaves out.
Knobs: `k` is the longest draft.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.shapes import Chain, Level
from mmspec.core.drafters.shortened import drafted_by
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.devices import device_of
from mmspec.hosts.sublayers import SelfDrafting
from mmspec_text.drafters.self_drafting.exits import ExitMemory, token_per_layer
from mmspec_text.specs import DEL


@dataclass(frozen=True)
class DynamicExitOptions:
    """Options of `del`."""

    latest: Annotated[int, Field(ge=1)] | None = field(
        default=None, metadata={"help": "the last layer behind which drafts may leave; default: half of the target's"}
    )


class DynamicExit:
    """Drafts behind the exit that promises most."""

    needs, offers = DEL.needs, DEL.offers
    example = "mmspec_text.self_drafting_example:dynamic_exit"
    runs_target = True

    def __init__(self, options: DynamicExitOptions = DynamicExitOptions()) -> None:
        self.options = options

    def wrap(self, target: Target) -> Target:
        """The target with states behind every exit.

        Raises:
            ValueError: There is no such exit, or as in `SelfDrafting`.
        """
        own = SelfDrafting(target, "del")
        latest = self.options.latest if self.options.latest is not None else max(1, own.layers // 2)
        own.sublayers.from_layer(latest)  # refuses what does not exist
        self._exits = torch.arange(1, latest + 1, device=device_of(own.target.model))
        return own.target.with_hidden(self._exits.tolist())

    def bind(self, target: Target) -> None:
        self._own = SelfDrafting(target, "del")
        self._norm, self._lent = self._own.target.anatomy.language.final_norm, self._own.target.lend

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> ExitMemory:
        return ExitMemory.of(len(self._exits), self._exits.device)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: ExitMemory = state.memory
        expected = token_per_layer(memory.rates, self._exits, k, self._own.layers)
        exit, length = divmod(int(expected.argmax()), k + 1)
        gone = self._own.sublayers.from_layer(exit + 1)
        ends = _Ends(memory.least_sure if length else 0.0, state)
        return drafted_by(partial(self._own.verify, gone, state), state, Chain(), length, noise, ends)

    @torch.inference_mode()
    def observe(self, state: State, step: Step) -> None:
        memory: ExitMemory = state.memory
        path, length = step.verdict.path, step.verdict.length
        nodes = torch.nn.functional.pad(path.clamp(min=0), (1, 0))  # the root first
        emitted = torch.cat([take_nodes(step.draft.units, nodes[:, 1:]), step.verdict.unit[:, None]], 1)
        emitted = emitted.scatter(1, length[:, None], step.verdict.unit[:, None])
        memory.saw(self._shadow(step, nodes), emitted, step.count)
        score = step.draft.score
        if score is not None and score.shape[1]:
            confidence = torch.diff(score, dim=1, prepend=torch.zeros_like(score[:, :1])).exp()
            order = torch.arange(score.shape[1], device=score.device)
            judged = (order <= length[:, None]) & step.draft.valid[:, 1:] & (step.count > 0)[:, None]
            memory.drafted(confidence, order < length[:, None], judged)

    def _shadow(self, step: Step, nodes: Tensor) -> Tensor:
        """What every exit finds likeliest behind the nodes of a path: `[exit, batch, n]`."""
        hidden, output = step.scores.hidden, self._lent().output
        assert hidden is not None, "the target was wrapped"
        states = take_nodes(hidden, nodes).unflatten(-1, (len(self._exits), -1))
        return torch.stack([output(self._norm(one)).argmax(-1) for one in states.unbind(2)])


@dataclass
class _Ends:
    """Whether a draft is long enough: in all rows, its last unit was less sure than `least`."""

    least: float  # the confidence
    state: State  # the call
    score: Tensor | float = 0.0  # `[batch, 1]`: the score of the level before

    def __call__(self, level: Level) -> bool:
        confidence, self.score = (level.score - self.score).exp(), level.score
        return bool(((confidence[:, 0] < self.least) | self.state.done).all())
