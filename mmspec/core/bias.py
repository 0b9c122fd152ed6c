"""The measured bias of a lossy rule: how far the distribution of what was emitted is from the target's, unit by unit.

A rule that measures says in its verdict, for every node, the total variation between the distribution of the unit that
is emitted there and the target's, and by how much the draft's acceptance exceeds an exact rule's. Here both are summed
over the nodes where a unit was really emitted: from the root to the last accepted node, after truncation.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mmspec.core.types import Draft, Verdict


@dataclass(frozen=True)
class Bias:
    """What a lossy rule did to the output.

    Attributes:
        tv: Mean total variation of an emitted unit from the target's distribution.
        altered: Expected altered units a row: the sum of those total variations.
        excess_acceptance: Mean acceptance probability of a decided draft, less what an exact rule would give it.
    """

    tv: float
    altered: float
    excess_acceptance: float

    def __str__(self) -> str:
        return (
            f"expected altered units per row {self.altered:.1f}, "
            f"total variation per unit {self.tv:.4f}, acceptance excess_acceptance by {self.excess_acceptance:.4f}"
        )


def weighed(draft: "Draft", verdict: "Verdict", count: Tensor) -> Tensor:
    """One round, without a host sync: summed total variation, summed easing, drafts decided: `[3]` float64.

    Args:
        draft: Rooted.
        verdict: Of a rule that measured.
        count: `[batch]` units emitted, after truncation.
    """
    assert verdict.tv is not None and verdict.excess_acceptance is not None
    emitted = verdict.emitted(count)
    spare = torch.zeros(len(count), draft.nodes + 1, dtype=torch.bool, device=count.device)
    parent = torch.where(draft.valid[:, 1:], draft.index.parent[:, 1:], draft.nodes)
    decided = spare.scatter(1, parent, True)[:, :-1] & emitted
    return torch.stack(
        [(values * emitted).sum(dtype=torch.float64) for values in (verdict.tv, verdict.excess_acceptance, decided)]
    )
