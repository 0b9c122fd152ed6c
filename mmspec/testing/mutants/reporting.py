"""Bugs of reporting: a distribution that is not the one the units were drawn from, or not the one that they must
follow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core import warp as core
from mmspec.core.distributions import Categorical, PointMass, where_nodes
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.noise import Noise
from mmspec.core.policies import Confidence
from mmspec.core.types import Draft, Scores, TargetOutput
from mmspec.core.warp import Prefix, Warp
from mmspec.testing.mutants.mutant import Mutant, replacing


@dataclass(frozen=True)
class _Misreported:
    """Drawn from one distribution, reported as another."""

    real: Any
    told: Categorical

    @staticmethod
    def cat(distributions: "Sequence[_Misreported]") -> Categorical:
        return Categorical.cat([distribution.told for distribution in distributions])

    def draw(self, noise: Noise) -> Tensor:
        return self.real.draw(noise)

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def with_draws(self, draws: Tensor) -> "_Misreported":
        return self

    def confidence(self) -> Tensor:
        return self.told.confidence()


def _raw_q(original: Callable) -> Any:
    def warp(state: Any, output: TargetOutput, *fed: Any) -> Any:
        scores = original(state, output, *fed)
        assert output.logits is not None
        return replace(scores, distribution=_Misreported(scores.distribution, Categorical.of_logits(output.logits)))

    return staticmethod(warp)


def _argmax_as_softmax(original: Callable) -> Any:
    def warp(state: Any, output: TargetOutput, *fed: Any) -> Any:
        scores = original(state, output, *fed)
        return replace(
            scores, distribution=_Misreported(PointMass(scores.distribution.probs.argmax(-1)), scores.distribution)
        )

    return staticmethod(warp)


def _unwarped_bonus(original: Callable) -> Callable:
    def call(self: Warp, output: TargetOutput, draft: Draft, prefix: Prefix, nodes: slice = slice(None)) -> Scores:
        scores = original(self, output, draft, prefix, nodes)
        if nodes != slice(None) or draft.nodes == 1:
            return scores
        assert output.logits is not None
        last = torch.arange(draft.nodes) == draft.nodes - 1
        distribution = Categorical(where_nodes(last[None], torch.softmax(output.logits, -1), scores.distribution.probs))
        return replace(scores, distribution=distribution)

    return call


def _root_history(original: Callable) -> Callable:
    def ids(draft: Draft, prefix: Prefix, row: int, node: int, length: int) -> Tensor:
        known = prefix.history[row, : prefix.known[row]]
        return torch.cat([known, known[-1:].expand(max(0, length - len(known)))])[:length]

    return ids


def _trim_by_own_q(original: Callable) -> Callable:
    def trim(self: Confidence, draft: Draft) -> Draft:
        if draft.distribution is None:
            return draft
        own = draft.distribution.of(draft.units).log().cumsum(1)  # type: ignore[attr-defined]
        return original(self, replace(draft, score=own))

    return trim


def _broken_distributions_stay(original: Callable) -> Callable:
    def rooted(self: Draft, root: Tensor, room: Tensor) -> Draft:
        made = original(replace(self, distribution=None), root, room)
        return replace(made, distribution=self.distribution) if self.units.shape[1] else made

    return rooted


MUTANTS = (
    Mutant(
        "raw-q",
        "the drafter samples from its warped distribution and reports the output softmax",
        "transformers #47932 (text.md § 0.2, rule 1)",
        replacing(DraftModel, "_warp", _raw_q),
    ),
    Mutant(
        "argmax-reported-as-softmax",
        "the draft is the likeliest unit, its distribution is reported as if it had been sampled",
        "ML-recurrent-drafter #6, jaymody #3 (core.md § A.3): TV 0.13",
        replacing(DraftModel, "_warp", _argmax_as_softmax),
    ),
    Mutant(
        "unwarped-bonus",
        "the unit after a fully accepted draft comes from the output softmax",
        "SWIFT, Falcon, EAGLE in Spec-Bench (text.md § 0.2, rule 2)",
        replacing(Warp, "__call__", _unwarped_bonus),
    ),
    Mutant(
        "history-of-the-root-at-every-node",
        "a repetition penalty looks at the known units only, not at the path to the node",
        "engines with relaxed penalties (core.md § A.3)",
        replacing(core, "_ids", _root_history),
    ),
    Mutant(
        "trim-by-own-q",
        "sampled nodes are dropped by their own q(x), then verified by rejection",
        "couplings.md § 5: mean TV 0.148; confidence heads that see the unit",
        replacing(Confidence, "trim", _trim_by_own_q),
    ),
    Mutant(
        "unit-of-no-distribution-as-a-proposal",
        "a draft model may say nothing that it knows; the unit of its NaN softmax, or of no mass, is verified",
        "this core's own `block`, and any rule where distributions have no mass: TV 0.07 to 0.45",
        replacing(Draft, "rooted", _broken_distributions_stay),
    ),
)
