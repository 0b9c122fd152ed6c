"""A decoder as drafter of a larger one: TriForce's idea (arXiv 2404.11912), for any middle target and inner drafter.

In every round an inner decoder (a middle target, a drafter of its own, a rule) emits `k` units after what the outer
call knows; they go up as a chain.

* Under `match` the inner decoder draws with the outer call's own noise at the same positions. Its units are then what
  the middle target says to that noise, and agree with the outer draws as often as two distributions that share noise
  can.
* Under every other rule it draws from a source of its own, whose key comes from this round's draft noise: nothing that
  the rule looks at. The inner rule is exact, so each unit follows the middle target's distribution after the units
  before it; that distribution is what the draft reports. What the innermost drafter thought of a unit is nobody's
  business.

Guarantee: that of the outer rule, which asks one thing only of a chain: unit i was drawn from distribution i, given
the units above it, with noise that the rule does not use. An inner rule that resamples a refused unit from the middle
distribution, not from the residual, breaks just that (TriForce's published code; a mutant).
Knobs: the outer `k` (more units a round, fewer outer passes), and all that the inner decoder has.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Distribution, take_nodes
from mmspec.core.noise import DraftNoise
from mmspec.core.offset_noise import OffsetSource
from mmspec.core.philox import PhiloxSource
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Started, Step, TargetOutput


class Middle(Target, Protocol):
    """A target that starts from a live call, not from a prompt; it offers `live`.

    Attributes:
        target: Whose weights its passes read.
    """

    target: Target

    def start(self, inputs: State, limit: int, width: int) -> Started:
        """Continue after all units that `inputs` knows, its root included.

        Args:
            inputs: The outer call, between two rounds: `cache` holds everything before `root`; `known`, `pads` and
                `history` say what that is. `memory` is the inner call of the round before (None in the first): its
                `cache` may be taken up again. Nothing of the outer call may be changed.
            limit: Units wanted.
            width: Most nodes of an inner draft, root included.

        Returns:
            Scores after the root, and the known units as the inner call's prompt.
        """
        ...


class CascadeDrafter:
    """Drafts what `decoder` emits.

    Args:
        decoder: Its target offers `live`; targets that start from a prompt are wrapped in `FromHistory`.

    Raises:
        ValueError: The decoder cannot continue a live call, or its rule is not exact.
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
        self._same_weights = False

    def bind(self, target: Target) -> None:
        if self.decoder.target.vocab != target.vocab:
            raise ValueError(
                f"the middle target has {self.decoder.target.vocab} unit ids and the target {target.vocab}; "
                "a cascade needs one vocabulary"
            )
        self._same_weights = cast(Middle, self.decoder.target).target is target

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> State | None:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        steps = list[Step]()
        for inner in self.decoder.rounds(state, k, source=_source(noise), warp=state.warp):
            if not steps:  # nobody waits for rows that are finished outside
                inner.done = inner.done | state.done
                inner.host_done = [a or b for a, b in zip(inner.host_done, state.host_done, strict=True)]
            assert inner.step is not None
            steps.append(inner.step)
        if self._same_weights:  # a start is a pass, too
            state.report.inner_passes += 1 + inner.report.equivalent_passes
        state.memory = inner
        units, distribution = inner.history[:, inner.given : inner.given + k], _distributions(steps, k)
        return Draft.chain(units, None if noise.shared else distribution, score=distribution.confidence().cumsum(1))

    def observe(self, state: State, step: Step) -> None:
        """Nothing to keep: the next round starts from what is known then."""


def _source(noise: DraftNoise) -> OffsetSource | PhiloxSource:
    if noise.shared:
        return OffsetSource(noise.round)
    return PhiloxSource((noise.chain(1, 2).uniform() * 2**32).long())


def _distributions(steps: list[Step], k: int) -> Distribution:
    """The inner target's distribution of each of the `k` units: that of the node which the unit followed."""
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
    """Lets a target that starts from a prompt start from a live call: the known units are the prompt, read anew.

    Args:
        target: Any target.
        prompt: From units `[batch, known, *unit]` and their padding on the left `[batch]` to what the target calls a
            prompt.
    """

    def __init__(self, target: Target, prompt: Callable[[Tensor, Tensor], Any]) -> None:
        self.target = target
        self.prompt = prompt
        self.offers = target.offers | {"live"}
        self.vocab = target.vocab
        self.context: int | None = target.context if isinstance(target, Bounded) else None

    def start(self, inputs: State, limit: int, width: int) -> Started:
        known = inputs.given + max(inputs.host_emitted)
        behind = known - inputs.known
        index = torch.arange(known, device=behind.device) - behind[:, None]
        units = take_nodes(inputs.history, index.clamp(min=0))
        return self.target.start(self.prompt(units, inputs.pads + behind), limit, width)

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        return self.target.verify(cache, draft, first)

    def commit(self, cache: Any, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache, path, count)

    def truncate(self, cache: Any, length: Tensor) -> None:
        self.target.truncate(cache, length)
