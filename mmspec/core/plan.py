"""The static shape of a captured round, and where its drafts come from."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch

from mmspec.core.capturable import InsideDrafts
from mmspec.core.proposal import Family, Proposal
from mmspec.core.rules.rule import Rule
from mmspec.core.tree import TreeIndex
from mmspec.core.warp import Warp


@dataclass(frozen=True)
class Drafts:
    """The drafts that a captured round takes, or makes.

    Attributes:
        tree: The nodes' parents, the root first; None: every draft brings its own.
        family: What drafted units are drawn from.
        key: What tells one drafter inside of the round from another.
        inside: New buffers for drafts that are made inside; None: they come from outside.
    """

    tree: tuple[int, ...] | None
    family: Family | None
    key: Hashable = None
    inside: InsideDrafts | None = None


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
        drafts: Makes the round's draft inside of it; None: the draft comes from outside.
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
    drafts: InsideDrafts | None = None

    def buffers(self, device: torch.device) -> Proposal | None:
        """New buffers for what drafted units were drawn from."""
        if self.family is None:
            return None
        return Proposal(self.family, self.rows, self.nodes - 1, self.vocab, device)

    def without_draft(self, device: torch.device) -> "Plan":
        """The plan of rounds that have the root alone."""
        return replace(self, nodes=1, deepest=0, index=TreeIndex.static([-1], device), family=None, lone=False)
