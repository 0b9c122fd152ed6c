"""Bugs of reporting: a law that is not the one the units were drawn from, or not the one that they must follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core import warp as core
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.laws import Categorical, PointMass, where_nodes
from mmspec.core.noise import Noise
from mmspec.core.policies import Confidence
from mmspec.core.types import Draft, Raw, Scores
from mmspec.core.warp import Prefix, Warp
from mmspec.testing.mutants.mutant import Mutant, replacing


@dataclass(frozen=True)
class _Misreported:
    """Drawn from one law, reported as another."""

    real: Any
    told: Categorical

    @staticmethod
    def cat(laws: "Sequence[_Misreported]") -> Categorical:
        return Categorical.cat([law.told for law in laws])

    def draw(self, noise: Noise) -> Tensor:
        return self.real.draw(noise)

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def having(self, draws: Tensor) -> "_Misreported":
        return self

    def confidence(self) -> Tensor:
        return self.told.confidence()


def _raw_q(original: Callable) -> Any:
    def warp(state: Any, raw: Raw, *fed: Any) -> Any:
        scores = original(state, raw, *fed)
        assert raw.logits is not None
        return replace(scores, law=_Misreported(scores.law, Categorical.of_logits(raw.logits)))

    return staticmethod(warp)


def _argmax_as_softmax(original: Callable) -> Any:
    def warp(state: Any, raw: Raw, *fed: Any) -> Any:
        scores = original(state, raw, *fed)
        return replace(scores, law=_Misreported(PointMass(scores.law.probs.argmax(-1)), scores.law))

    return staticmethod(warp)


def _unwarped_bonus(original: Callable) -> Callable:
    def call(self: Warp, raw: Raw, draft: Draft, prefix: Prefix, nodes: slice = slice(None)) -> Scores:
        scores = original(self, raw, draft, prefix, nodes)
        if nodes != slice(None) or draft.nodes == 1:
            return scores
        assert raw.logits is not None
        last = torch.arange(draft.nodes) == draft.nodes - 1
        law = Categorical(where_nodes(last[None], torch.softmax(raw.logits, -1), scores.law.probs))
        return replace(scores, law=law)

    return call


def _root_history(original: Callable) -> Callable:
    def ids(draft: Draft, prefix: Prefix, row: int, node: int, length: int) -> Tensor:
        known = prefix.history[row, : prefix.known[row]]
        return torch.cat([known, known[-1:].expand(max(0, length - len(known)))])[:length]

    return ids


def _trim_by_own_q(original: Callable) -> Callable:
    def trim(self: Confidence, draft: Draft) -> Draft:
        if draft.law is None:
            return draft
        own = draft.law.of(draft.units).log().cumsum(1)  # type: ignore[attr-defined]
        return original(self, replace(draft, score=own))

    return trim


def _broken_laws_stay(original: Callable) -> Callable:
    def rooted(self: Draft, root: Tensor, room: Tensor) -> Draft:
        made = original(replace(self, law=None), root, room)
        return replace(made, law=self.law) if self.units.shape[1] else made

    return rooted


MUTANTS = (
    Mutant(
        "raw-q",
        "the drafter samples from its warped law and reports the raw softmax",
        "transformers #47932 (text.md § 0.2, rule 1)",
        replacing(DraftModel, "_warp", _raw_q),
    ),
    Mutant(
        "argmax-reported-as-softmax",
        "the draft is the likeliest unit, its law is reported as if it had been sampled",
        "ML-recurrent-drafter #6, jaymody #3 (core.md § A.3): TV 0.13",
        replacing(DraftModel, "_warp", _argmax_as_softmax),
    ),
    Mutant(
        "unwarped-bonus",
        "the unit after a fully accepted draft comes from the raw softmax",
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
        "this core's own `block`, and any rule where laws have no mass: TV 0.07 to 0.45",
        replacing(Draft, "rooted", _broken_laws_stay),
    ),
)
