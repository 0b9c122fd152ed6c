"""How often the children of each rank are accepted: what a static tree is chosen by."""

import torch
from torch import Tensor

from mmspec.core.types import Step


def counted(step: Step, ranks: int) -> tuple[Tensor, Tensor]:
    """Of a settled round: children of each rank behind nodes where a unit was emitted, and those accepted: `[rank]`.

    Args:
        step: The round.
        ranks: Number of ranks; children of higher ones are not counted.
    """
    index, reached = step.draft.index, step.verdict.emitted(step.count)
    parent = index.parent[:, 1:].expand(len(reached), -1)
    tried = step.draft.valid[:, 1:] & reached.gather(1, parent)
    rank = index.rank[:, 1:].expand_as(tried)
    of_rank = rank[..., None] == torch.arange(ranks, device=rank.device)
    right = tried & reached[:, 1:]
    return _sums(of_rank, tried), _sums(of_rank, right)


def _sums(of_rank: Tensor, nodes: Tensor) -> Tensor:
    return (of_rank & nodes[..., None]).sum((0, 1)).float()
