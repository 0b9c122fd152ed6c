"""`del`: the target's first layers draft, and where they are left, and for how long, is chosen in every round.

DEL (Entezari Zarch et al., arXiv 2504.05598): the exit and the length are those with the most expected units per layer
that runs (token-per-layer), by acceptance rates that shadow tokens give without a pass. A draft ends early
where the drafter is less sure than between the means of units that were refused and accepted.
Shadow tokens are what the model would have drafted behind each of its layers; the states that verification computed
give them for nothing but the output layer. Of every layer they say how many units in a row it would have got right. The
weights of old rounds and the prior are ours.
Drafts hand their states to verification, which then runs the other layers alone (`resumed`).
Guarantee: the rule's; exit and length are chosen from what rounds before have shown, and a draft's end from
the distribution before the unit that it leaves out.
Knobs: `k` is the longest draft.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.shapes import Level
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.devices import device_of
from mmspec.registry.options import option
from mmspec_zoo.self_drafting.resumed import ExitDrafting
from mmspec_zoo.self_drafting.shortened import SelfDrafting
from mmspec_zoo.specs import DEL


@dataclass(frozen=True)
class DynamicExitOptions:
    latest: Annotated[int, Field(ge=1)] | None = option(
        None, "the last layer behind which drafts may leave; default: half of the target's"
    )


class DynamicExit:
    """Drafts behind the exit that promises most."""

    needs, offers = DEL.needs, DEL.offers
    runs_target = True

    def __init__(self, options: DynamicExitOptions = DynamicExitOptions()) -> None:
        self.options = options

    def wrap(self, target: Target) -> Target:
        """The target with states behind every exit."""
        own = SelfDrafting(target, "del")
        latest = self.options.latest if self.options.latest is not None else max(1, own.layers // 2)
        own.sublayers.from_layer(latest)  # refuses what does not exist
        self._exits = torch.arange(1, latest + 1, device=device_of(own.target.model))
        self._norm, self._lent = own.target.model_info.language.final_norm, own.target.lend
        self._own = ExitDrafting(own.target.with_hidden(self._exits.tolist()), "del", latest)
        return self._own.target

    def bind(self, target: Target) -> None:
        """Do nothing: the target was wrapped."""

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> "ExitMemory":
        return ExitMemory.of(len(self._exits), self._exits.device)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: ExitMemory = state.memory
        expected = token_per_layer(memory.rates, self._exits, k, self._own.layers)
        exit, length = divmod(int(expected.argmax()), k + 1)
        ends = _Ends(memory.least_sure if length else 0.0, state)
        return self._own.draft(exit + 1, state, length, noise, ends)

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
        """The unit that every exit finds likeliest behind the nodes of a path: `[exit, batch, n]`."""
        hidden, output = step.scores.hidden, self._lent().output
        assert hidden is not None, "the target was wrapped"
        states = take_nodes(hidden, nodes).unflatten(-1, (len(self._exits), -1))
        return torch.stack([output(self._norm(one)).argmax(-1) for one in states.unbind(2)])


@dataclass
class _Ends:
    """True if a draft is long enough: in all rows, its last unit was less sure than `least`."""

    least: float  # the confidence
    state: State  # the call
    score: Tensor | float = 0.0  # `[batch, 1]`: the score of the level before

    def __call__(self, level: Level) -> bool:
        confidence, self.score = (level.score - self.score).exp(), level.score
        return bool(((confidence[:, 0] < self.least) | self.state.done).all())


MEMORY = 0.95  # the weight of a round, relative to that of the next one


def token_per_layer(rates: Tensor, layers: Tensor, longest: int, whole: int) -> Tensor:
    """Token-per-layer, `[exit, length]` from length 0 on: units that a round is expected to emit, for each layer that
    it runs.

    A unit that was drafted by `layers[e]` layers is accepted with probability `rates[e]`. The whole model counts
    `whole` layers, and a draft of `d` units behind layer `l` another `d · l`.
    """
    lengths = torch.arange(longest + 1, device=rates.device)
    expected = (rates[:, None] ** lengths).cumsum(1)  # 1 + α + … + α^d
    return expected / (lengths * layers[:, None] + whole)


def matches(shadow: Tensor, emitted: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Shadow tokens in a row that were right, of those that each exit would have drafted (`shadow [exit, batch, n]`)
    and `count [batch]` of `emitted [batch, n]` that came, and those that were asked for that: `[exit]` float64.
    """
    there = torch.arange(emitted.shape[1], device=count.device) < count[:, None]
    right = ((shadow == emitted) & there).long().cumprod(2).sum(2)  # [exit, batch]
    asked = torch.minimum(right + 1, count)
    return right.sum(1).double(), asked.sum(1).double()


@dataclass
class ExitMemory:
    """A call's counts, weighted by age."""

    right: Tensor  # `[exit]` float64: units that were right, by exit
    asked: Tensor  # `[exit]` float64: units of which that is known
    # Sums of the confidences of drafted units, and their number, if refused and if accepted: `[2, 2]` float64
    sure: Tensor
    passes: float = 0.0  # as in `ReadShare`

    @classmethod
    def of(cls, exits: int, device: torch.device) -> "ExitMemory":
        """At the beginning of a call, nothing is known."""
        right, asked, sure = (torch.zeros(size, dtype=torch.float64, device=device) for size in (exits, exits, (2, 2)))
        return cls(right, asked, sure)

    @property
    def rates(self) -> Tensor:
        """Acceptance rates `[exit]`; 1 in 2 where nothing is known (Laplace's rule)."""
        return (self.right + 1) / (self.asked + 2)

    @property
    def least_sure(self) -> float:
        """The confidence below which a draft ends: between the means of refused and of accepted units; 0 at first."""
        return float((self.sure[:, 0] / self.sure[:, 1]).mean().nan_to_num(0))  # 0 / 0 where there were none

    def saw(self, shadow: Tensor, emitted: Tensor, count: Tensor) -> None:
        """Count a round; arguments as in `matches`."""
        right, asked = matches(shadow, emitted, count)
        self.right, self.asked = MEMORY * self.right + right, MEMORY * self.asked + asked

    def drafted(self, confidence: Tensor, accepted: Tensor, judged: Tensor) -> None:
        """Count a draft: how sure the drafter was of each unit, and which were accepted, of those that were `judged`,
        accepted or refused behind accepted ones: `[batch, k]`.
        """
        for kind, which in enumerate((judged & ~accepted, judged & accepted)):
            now = torch.stack([(confidence * which).sum(), which.sum()])
            self.sure[kind] = MEMORY * self.sure[kind] + now
