"""Bugs of nesting: an inner decoder whose units do not follow the distribution that they are reported with."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from mmspec.core.distributions import Categorical
from mmspec.core.drafters import cascade as core
from mmspec.core.drafters.cascade import CascadeDrafter
from mmspec.core.noise import DraftNoise, OffsetSource, Round, Substream
from mmspec.core.rules import Rejection
from mmspec.core.rules.rule import walk
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores, Verdict
from tests.support.mutants.mutant import Mutant, replacing


class _Resampling(Rejection):
    """Rejection that replaces refused units by draws from p itself, not from the residual."""

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        noise, distribution = round.fresh(draft.nodes), scores.distribution
        drawn = distribution.draw(noise.substream(Substream.RESIDUAL))
        if draft.nodes > 1 and draft.distribution is not None:
            assert isinstance(distribution, Categorical) and isinstance(draft.distribution, Categorical)
            p, q = distribution.take(draft.index.parent[:, 1:]).of(draft.drafted), draft.distribution.of(draft.drafted)
            kept = (noise.substream(Substream.COIN).uniform()[:, 1:] * q < p) & draft.valid[:, 1:]
            drawn = torch.cat([torch.where(kept, draft.drafted, drawn[:, :-1]), drawn[:, -1:]], 1)
        return walk(draft, drawn)


def _resampling(original: Callable) -> Callable:
    def propose(self: CascadeDrafter, state: State, k: int, noise: DraftNoise) -> Any:
        with mock.patch.object(self.decoder, "rule", _Resampling()):
            return original(self, state, k, noise)

    return propose


MUTANTS = (
    Mutant(
        "middle-resamples-from-its-own-distribution",
        "after a refusal the inner decoder draws from the middle distribution, not from the residual, and reports that",
        "TriForce (arXiv 2404.11912), the middle level of the released code; measured total variation 0.05",
        replacing(CascadeDrafter, "propose", _resampling),
    ),
    Mutant(
        "outer-noise-inside-under-block",
        "the inner decoder draws with noise by the outer call's positions, which `block` uses past its stopping point",
        "block verification (arXiv 2403.10444) with draft noise that is reused; measured χ²/df 6.4",
        replacing(core, "_source", lambda original: lambda noise: OffsetSource(noise.round)),
    ),
)
