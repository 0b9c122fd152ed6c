"""Two drafters: the tree of the first, and what the second's tree adds to it.

RASD (arXiv 2503.03434): a retrieved tree is pruned by the draft model, and fused with the draft model's own by their
longest common prefixes. Kept are paths whose first unit the first drafter proposes, too; a node that both have is one
node. Of the others the `most` best are added behind the first drafter's nodes, by the first drafter's score of the
path's first unit times the share of the second's that goes on so.
Both must draft point masses, and the first must give scores.
"""

import math
from dataclasses import replace
from typing import Any

import torch

from mmspec.core.drafters.fallback import own_memory
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Step


class United:
    """The union of two trees. The call's memory is a list: first's memory, second's memory.

    Args:
        first: Its tree is kept whole.
        second: Adds to it.
        most: Nodes that it adds at most.

    Raises:
        ValueError: One of them drafts from a distribution (offers `q`).
    """

    offers = frozenset({"tree"})

    def __init__(self, first: Drafter, second: Drafter, most: int) -> None:
        for drafter in (first, second):
            if "q" in drafter.offers:
                raise ValueError(f"{type(drafter).__name__} draws its drafts from a distribution, which a union loses")
        self.first, self.second, self.most = first, second, most
        self.needs = first.needs | second.needs

    def bind(self, target: Target) -> None:
        self.first.bind(target)
        self.second.bind(target)

    def width(self, k: int) -> int:
        return self.first.width(k) + self.most

    def start(self, state: State, inputs: Any) -> list[Any]:
        return [self.first.start(state, inputs), self.second.start(state, inputs)]

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        with own_memory(state, 0):
            first = self.first.propose(state, k, noise)
        with own_memory(state, 1):
            second = self.second.propose(state, k, noise)
        if not first.units.shape[1] or not second.units.shape[1]:
            return first
        rows = zip(_listed(first), _listed(second), strict=True)
        deepest = max(first.index.deepest, second.index.deepest)  # a path of both is one of the second's
        return _behind(first, [added(*row, self.most) for row in rows], deepest)

    def observe(self, state: State, step: Step) -> None:
        with own_memory(state, 0):
            self.first.observe(state, step)
        with own_memory(state, 1):
            self.second.observe(state, step)


Listed = list[tuple[int, int, float]]
"""A tree: unit, index of the parent (-1: the root), score of every node; -inf for nodes that are not valid."""


def added(first: Listed, second: Listed, most: int) -> Listed:
    """What a second tree adds to a first, whose nodes come first."""
    place = {(parent, unit): index for index, (unit, parent, score) in enumerate(first) if score > -math.inf}
    found: list[tuple[float, int, int, int]] = []  # score, then unit, parent and own index among all nodes
    at: dict[int, int] = {}  # of the second's nodes that are in the union: index there
    value: dict[int, float] = {}  # the union's score, less the second's, along a path
    for index, (unit, parent, score) in enumerate(second):
        above = -1 if parent < 0 else at.get(parent)
        if above is None or score == -math.inf:
            continue
        known = place.get((above, unit))
        if parent < 0:
            if known is None:
                continue  # the first drafter does not think of it
            value[index] = first[known][2] - score
        else:
            value[index] = value[parent]
        if known is None:
            known = len(first) + len(found)
            place[above, unit] = known
            found.append((score + value[index], unit, above, known))
        at[index] = known
    best = sorted(sorted(found, key=lambda node: -node[0])[:most], key=lambda node: node[3])
    new = {node[3]: len(first) + order for order, node in enumerate(best)}
    return [(unit, new.get(parent, parent), score) for score, unit, parent, _ in best]


def _listed(draft: Draft) -> list[Listed]:
    assert draft.score is not None, "the union of two trees goes by their scores"
    score = torch.where(draft.valid, draft.score, -torch.inf)
    parents = (draft.index.parent[:, 1:] - 1).expand(score.shape)
    read = torch.stack([draft.units, parents, score.float().view(torch.int32).long()]).cpu()  # one wait
    parts = (read[0].tolist(), read[1].tolist(), read[2].int().view(torch.float32).tolist())
    return [list(zip(*row, strict=True)) for row in zip(*parts, strict=True)]


def _behind(draft: Draft, trees: list[Listed], deepest: int) -> Draft:
    """A draft with the nodes of one more tree per row behind its own, of at most so many levels in all."""
    width = max(map(len, trees))
    if not width:
        return draft
    filled = [tree + [(0, -1, -math.inf)] * (width - len(tree)) for tree in trees]
    units, parents, score = (
        on_device([[node[part] for node in tree] for tree in filled], draft.units.device, dtype)
        for part, dtype in enumerate((torch.int64, torch.int64, torch.float32))
    )
    assert draft.score is not None
    own = (draft.index.parent[:, 1:] - 1).expand(len(units), -1)
    longer = Draft.tree(
        torch.cat([draft.units, units], 1),
        torch.cat([own, parents], 1),
        valid=torch.cat([draft.valid, score > -torch.inf], 1),
        deepest=deepest,
    )
    return replace(longer, score=torch.cat([draft.score, score], 1))
