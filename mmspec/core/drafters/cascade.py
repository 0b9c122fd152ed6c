"""A decoder as drafter of a larger one: TriForce's idea (arXiv 2404.11912), for any middle target and inner drafter.

In every round an inner decoder (a middle target, a drafter of its own, a rule) emits `k` units after the outer call's
known units; these are the outer draft, a chain.

* Under `match` the inner decoder draws with the outer call's own noise at the same positions. Its units are then the
  middle target's draws with that noise, and agree with the outer draws as often as two distributions that share noise
  can.
* Under every other rule it draws from a source of its own, keyed by this round's draft noise, which the rule does not
  use. The inner rule is exact, so each unit follows the middle target's distribution after the units before it; the
  draft reports that distribution. The innermost drafter's distributions do not matter.

Guarantee: the outer rule's, which requires of a chain only that unit i was drawn from distribution i, given the
units before it, with noise that the rule does not use. An inner rule that resamples a refused unit from the middle
distribution instead of the residual violates this (TriForce's published code does).
Knobs: the outer `k` (more units per round, fewer outer passes), and all knobs of the inner decoder.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Distribution
from mmspec.core.noise import DraftNoise, OffsetSource
from mmspec.core.philox import PhiloxSource
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Prefill, Step, TargetOutput


class Middle(Target, Protocol):
    """A target that starts from a running call, not from a prompt; it offers `live`.

    Attributes:
        target: The target whose weights its passes read.
    """

    target: Target

    def start(self, inputs: State, limit: int, width: int) -> Prefill:
        """Continue after all known units of `inputs`, its root included.

        Args:
            inputs: The outer call, between two rounds: `cache` holds all units before `root`, which `history`, `known`
                and `pads` describe. `memory` is the inner call of the round before (None in the first), whose `cache`
                may be reused. Nothing of the outer call may be changed.
            limit: Units wanted.
            width: Most nodes of an inner draft, root included.

        Returns:
            The output after the root, and the known units as the inner call's prompt.
        """


class CascadeDrafter:
    """Drafts the units that an inner decoder emits.

    Args:
        decoder: The inner decoder. Its target offers `live`; a target that starts from a prompt is wrapped in
            `FromHistory`.
    """

    offers = frozenset({"chain", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(self, decoder: Decoder) -> None:
        name = type(decoder.target).__name__
        if "live" not in decoder.target.offers:
            raise ValueError(f"{name} starts from a prompt; a cascade's middle is FromHistory({name}(…), prompt)")
        if decoder.rule.exactness not in ("invariant", "lossless"):
            raise ValueError(f"a cascade's inner rule must be exact, {type(decoder.rule).__name__} is not; use Match()")
        self.decoder = decoder
        self.runs_target = False

    def bind(self, target: Target) -> None:
        if self.decoder.target.vocab != target.vocab:
            raise ValueError(
                f"the middle target has {self.decoder.target.vocab} unit ids and the target {target.vocab}; "
                "a cascade needs one vocabulary"
            )
        self.runs_target = cast(Middle, self.decoder.target).target is target

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> State | None:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        steps = list[Step]()
        for inner in self.decoder.rounds(state, k, source=_source(noise), warp=state.warp):
            if not steps:  # rows that are finished in the outer call are finished in the inner one
                inner.end_rows_of(state)
            assert inner.step is not None
            steps.append(inner.step)
        if self.runs_target:  # the inner prefill is a pass, too
            state.report.inner_passes += 1 + inner.report.equivalent_passes
        state.memory = inner
        units, distribution = inner.history[:, inner.prompt_length : inner.prompt_length + k], _distributions(steps, k)
        return Draft.chain(units, None if noise.shared else distribution, score=distribution.confidence().cumsum(1))

    def observe(self, state: State, step: Step) -> None:
        """Does nothing: the next round starts from the units known then."""


def _source(noise: DraftNoise) -> OffsetSource | PhiloxSource:
    if noise.shared:
        return OffsetSource(noise.round)
    return PhiloxSource((noise.chain(1, 2).uniform() * 2**32).long())


def _distributions(steps: list[Step], k: int) -> Distribution:
    """The middle target's distribution of each of the `k` units: that at the node before it."""
    begun = torch.zeros_like(steps[0].count)
    distributions, where = [], []
    for step in steps:
        nodes = torch.nn.functional.pad(step.verdict.path.clamp(min=0), (1, 0))  # [batch, depth + 1], the root first
        slot = torch.arange(nodes.shape[1], device=nodes.device)
        distributions.append(step.scores.distribution.with_draws(step.verdict.drawn).take(nodes))
        where.append(torch.where(slot < step.count[:, None], begun[:, None] + slot, k))
        begun = begun + step.count
    unit = torch.cat(where, 1)
    order = torch.arange(unit.shape[1], device=unit.device).expand_as(unit)
    node = torch.zeros(len(unit), k + 1, dtype=torch.int64, device=unit.device).scatter_(1, unit, order)
    return type(distributions[0]).cat(distributions).take(node[:, :k])


class FromHistory:
    """A `Middle` over any target: in every round the known units are the prompt, prefilled anew.

    `prompt` turns units `[batch, known, *unit]` and their padding on the left `[batch]` into the target's prompt.
    """

    def __init__(self, target: Target, prompt: Callable[[Tensor, Tensor], Any]) -> None:
        self.target = target
        self.prompt = prompt
        self.offers = target.offers | {"live"}
        self.vocab = target.vocab
        self.context: int | None = target.context if isinstance(target, Bounded) else None

    def start(self, inputs: State, limit: int, width: int) -> Prefill:
        return self.target.start(self.prompt(*inputs.as_prompt()), limit, width)

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        return self.target.verify(cache, draft, first)

    def commit(self, cache: Any, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache, path, count)

    def truncate(self, cache: Any, length: Tensor) -> None:
        self.target.truncate(cache, length)
