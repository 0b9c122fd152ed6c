"""Bugs of reporting: the reported distribution is not that of the draw, or not the one that units must follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core import history_processors
from mmspec.core.distributions import Categorical, PointMass, where_nodes
from mmspec.core.drafters import growing
from mmspec.core.history_processors import Prefix
from mmspec.core.noise import Noise
from mmspec.core.policies import Confidence
from mmspec.core.types import Draft, Scores, TargetOutput
from mmspec.core.warp import Warp
from tests.support.mutants.mutant import Mutant, replacing


@dataclass(frozen=True)
class _Misreported:
    """Draws from one distribution, and is reported as another."""

    real: Any
    reported: Categorical

    @staticmethod
    def cat(distributions: "Sequence[_Misreported]") -> Categorical:
        return Categorical.cat([distribution.reported for distribution in distributions])

    def draw(self, noise: Noise) -> Tensor:
        return self.real.draw(noise)

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def with_draws(self, draws: Tensor) -> "_Misreported":
        return self

    def confidence(self) -> Tensor:
        return self.reported.confidence()


def _raw_q(original: Callable) -> Callable:
    def warp(state: Any, output: TargetOutput, *fed: Any) -> Any:
        assert output.logits is not None
        return _Misreported(original(state, output, *fed), Categorical.of_logits(output.logits))

    return warp


def _argmax_as_softmax(original: Callable) -> Callable:
    def warp(state: Any, output: TargetOutput, *fed: Any) -> Any:
        found = original(state, output, *fed)
        return _Misreported(PointMass(found.probs.argmax(-1)), found)

    return warp


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
    def ids(self: Any, row: Tensor, node: Tensor, length: int) -> Tensor:
        histories = original(self, row, node, length)
        known = self.known[row, None]
        behind = torch.arange(length, device=row.device) >= known
        return torch.where(behind, histories.gather(1, known - 1), histories)

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
        draft = original(replace(self, distribution=None), root, room)
        return replace(draft, distribution=self.distribution) if self.units.shape[1] else draft

    return rooted


MUTANTS = (
    Mutant(
        "raw-q",
        "the drafter samples from its warped distribution and reports the unprocessed softmax",
        "transformers issue 47932",
        replacing(growing, "warped", _raw_q),
    ),
    Mutant(
        "argmax-reported-as-softmax",
        "the draft is the likeliest unit, its distribution is reported as if it had been sampled",
        "ml-recurrent-drafter issue 6 (ReDrafter, arXiv 2403.09919); measured total variation 0.13",
        replacing(growing, "warped", _argmax_as_softmax),
    ),
    Mutant(
        "unwarped-bonus",
        "the unit after a fully accepted draft comes from the unprocessed softmax",
        "the code of SWIFT (arXiv 2410.06916), and of EAGLE (arXiv 2401.15077) in Spec-Bench",
        replacing(Warp, "__call__", _unwarped_bonus),
    ),
    Mutant(
        "history-of-the-root-at-every-node",
        "a repetition penalty looks at the known units only, not at the path to the node",
        "serving engines that apply penalties once per draft",
        replacing(history_processors._Histories, "ids", _root_history),
    ),
    Mutant(
        "trim-by-own-q",
        "sampled nodes are dropped by their own q(x), then verified by rejection",
        "draft lengths by a confidence that has seen the drawn unit; measured mean total variation 0.148",
        replacing(Confidence, "trim", _trim_by_own_q),
    ),
    Mutant(
        "unit-of-no-distribution-as-a-proposal",
        "all units of a draft model are forbidden; the unit of its NaN softmax, or of no mass, is verified",
        "the first version of `block` in this core; measured total variation 0.07 to 0.45",
        replacing(Draft, "rooted", _broken_distributions_stay),
    ),
)
