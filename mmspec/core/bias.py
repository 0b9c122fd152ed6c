"""The measured bias of a lossy rule: the distance of the emitted units' distribution from the target's.

A rule that measures states in its verdict, for every node, the total variation between the distribution of the unit
that it emits there and the target's, and by how much its acceptance exceeds an exact rule's. This module sums both over
the nodes at which a unit was really emitted: from the root to the last accepted node, after truncation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.types import Draft, Verdict
from mmspec.core.widest import widest


@dataclass(frozen=True)
class Bias:
    """What a lossy rule did to the output."""

    tv: float  # mean total variation of an emitted unit from the target's distribution
    altered: float  # expected number of altered units per row: the sum of these total variations
    excess_acceptance: float  # mean acceptance probability of a decided node, less that under an exact rule

    def __str__(self) -> str:
        return (
            f"expected altered units per row {self.altered:.1f}, "
            f"total variation per unit {self.tv:.4f}, acceptance in excess by {self.excess_acceptance:.4f}"
        )


def bias_sums(draft: Draft, verdict: Verdict, count: Tensor) -> Tensor:
    """One round's sums, without a host sync, `[3]`: total variation, excess acceptance, decided nodes.

    Args:
        draft: The rooted draft.
        verdict: The decision of a rule that measured.
        count: `[batch]` units emitted, after truncation.
    """
    assert verdict.tv is not None and verdict.excess_acceptance is not None
    emitted, wide = verdict.emitted(count), widest(count.device)
    spare = torch.zeros(len(count), draft.nodes + 1, dtype=torch.bool, device=count.device)
    parent = torch.where(draft.valid[:, 1:], draft.index.parent[:, 1:], draft.nodes)
    decided = spare.scatter(1, parent, True)[:, :-1] & emitted
    return torch.stack(
        [(values * emitted).sum(dtype=wide) for values in (verdict.tv, verdict.excess_acceptance, decided)]
    )
