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
    """The drafts that a captured round takes, or makes."""

    tree: tuple[int, ...] | None  # the nodes' parents, the root first; None: every draft brings its own
    family: Family | None  # what drafted units are drawn from
    key: Hashable = None  # what tells one drafter inside of the round from another
    inside: InsideDrafts | None = None  # new buffers for drafts that are made inside; None: they come from outside


@dataclass(frozen=True)
class Plan:
    """The static shape of a round."""

    rows: int  # rows of the batch
    nodes: int  # nodes of every pass, root and padding included
    deepest: int  # depth of the deepest node that a draft may have
    index: TreeIndex | None  # the tree of every draft; None: each round brings its own
    vocab: int  # number of unit ids
    warp: Warp  # turns scores into distributions; all its processors are element-wise
    rule: Rule  # decides which nodes are accepted
    # What the drafted units were drawn from; None: there is no distribution, or nobody reads it
    family: Family | None = None
    frozen: bool = False  # whether the weights are baked in (`mmspec.core.frozen`).
    lone: bool = False  # whether a round without a draft has one node
    drafts: InsideDrafts | None = None  # makes the round's draft inside of it; None: the draft comes from outside

    def buffers(self, device: torch.device) -> Proposal | None:
        """New buffers for what drafted units were drawn from."""
        if self.family is None:
            return None
        return Proposal(self.family, self.rows, self.nodes - 1, self.vocab, device)

    def without_draft(self, device: torch.device) -> "Plan":
        """The plan of rounds that have the root alone."""
        return replace(self, nodes=1, deepest=0, index=TreeIndex.static([-1], device), family=None, lone=False)
