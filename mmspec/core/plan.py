"""The static shape of a captured round."""

from dataclasses import dataclass, replace

import torch

from mmspec.core.capabilities import DraftsInside
from mmspec.core.proposal import Family, Proposal
from mmspec.core.rules.rule import Rule
from mmspec.core.tree import TreeIndex
from mmspec.core.warp import Warp


@dataclass(frozen=True)
class Plan:
    """The static shape of a round.

    Attributes:
        rows: Rows of the batch.
        nodes: Nodes of every pass, root and padding included.
        deepest: Depth of the deepest node that a draft may have.
        index: The tree of every draft; None: each round brings its own.
        vocab: Number of unit ids.
        warp: Turns scores into distributions; all its processors are element-wise.
        rule: Decides which nodes are accepted.
        family: What the drafted units were drawn from; None: there is no distribution, or nobody reads it.
        frozen: Whether the weights are baked in (`mmspec.core.frozen`).
        lone: Whether a round without a draft has one node.
        drafter: Drafts inside the round; None: the draft comes from outside.
        k: Budget of its drafts.
    """

    rows: int
    nodes: int
    deepest: int
    index: TreeIndex | None
    vocab: int
    warp: Warp
    rule: Rule
    family: Family | None = None
    frozen: bool = False
    lone: bool = False
    drafter: DraftsInside | None = None
    k: int = 0

    def buffers(self, device: torch.device) -> Proposal | None:
        """New buffers for what drafted units were drawn from."""
        if self.family is None:
            return None
        return Proposal(self.family, self.rows, self.nodes - 1, self.vocab, device)

    def without_draft(self, device: torch.device) -> "Plan":
        """The plan of rounds that have the root alone."""
        return replace(self, nodes=1, deepest=0, index=TreeIndex.static([-1], device), family=None, lone=False)
