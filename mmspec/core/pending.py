"""Rounds that are not settled yet, and rounds whose truth comes later, such as a player's real actions."""

from dataclasses import dataclass, replace

from torch import Tensor

from mmspec.core.distributions import PointMass, take_nodes
from mmspec.core.types import Draft, Scores


@dataclass(frozen=True)
class Pending:
    """A round that is drafted and verified, not settled."""

    draft: Draft  # the rooted draft
    scores: Scores  # the target's scores at its nodes
    nodes: int  # nodes of the target's pass, padding included


def with_truth(draft: Draft, scores: Scores, truth: Tensor) -> tuple[Draft, Scores]:
    """Draft and scores of a round whose truth is known: at depth d all mass is on `truth[:, d]`.

    Nodes may match any unit of the truth, the last one too: it becomes the new root, and was already verified.
    """
    depth = draft.index.depth.expand(len(truth), -1).clamp(max=truth.shape[1] - 1)
    distribution = PointMass(take_nodes(truth, depth))
    return draft.shallower(truth.shape[1] + 1), replace(scores, distribution=distribution, finite=distribution.finite())
