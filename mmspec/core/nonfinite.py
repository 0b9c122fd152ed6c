"""Scores that are NaN or all -inf, and latents that are not finite: where they are, and what to say of them."""

import torch
from torch import Tensor

from mmspec.core.distributions.capabilities import Explaining
from mmspec.core.distributions.distribution import finite_nodes
from mmspec.core.types import Draft, Scores, Step, Verdict

NOWHERE = torch.iinfo(torch.int64).max
"""Position in rows where everything is finite."""


def first_nonfinite(draft: Draft, scores: Scores, verdict: Verdict, emitted: Tensor, done: Tensor) -> Tensor:
    """The first new unit of every row that is not finite, or whose scores are not: `[batch]` int64, or `NOWHERE`.

    Only the root and the accepted path count: plain decoding never sees the scores after a refused unit. A valid
    distribution may still draw a latent that is not finite, so latents are checked, too. No host sync. `emitted` and
    `done`, `[batch]`, are as before this round.
    """
    finite = scores.finite
    if verdict.drawn.is_floating_point():
        finite = finite & finite_nodes(verdict.drawn)
    if draft.nodes == 1:
        return torch.where(finite[:, 0] | done, NOWHERE, emitted)
    reached = torch.zeros(len(emitted), draft.nodes + 1, dtype=torch.bool, device=emitted.device)
    reached = reached.scatter_(1, verdict.path + 1, True)[:, 1:]
    reached[:, 0] = True
    bad = ~finite & ~done[:, None] & reached
    return torch.where(bad, emitted[:, None] + draft.index.depth, NOWHERE).amin(1)


def nonfinite_message(step: Step | None, row: int, position: int, emitted: int) -> str:
    """What is wrong with new unit `position` of a row that was drawn in `step`, as its distribution explains it.

    `emitted` is the number of units that the row has emitted, this round's included.
    """
    if step is not None and isinstance(step.scores.distribution, Explaining):
        node = position - (emitted - int(step.count[row]))  # such distributions are drafted for in chains
        drawn = step.verdict.drawn
        fault = step.scores.distribution.fault(drawn, row, node) if 0 <= node < drawn.shape[1] else ""
        if fault:
            return f"new unit {position}: {fault}"
    return f"the target's scores of new unit {position} are NaN or all -inf"
