"""The protocol of a verification rule, and the walk that all rules share.

A rule draws one unit at every node (freely, with noise by position, or coupled with the drafted child); the walk goes
from the root to the child that equals the draw, as deep as possible.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import take_nodes
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.types import Draft, Scores, Verdict


@runtime_checkable
class Rule(Protocol):
    """Draft + scores → verdict. Optional members: `mmspec.core.capabilities`.

    Attributes:
        exactness: `invariant` (the output of plain decoding with the same seed), `lossless` (the distribution of plain
            decoding), `lossy`, or `synthetic`.
        needs: Words that target and drafter together must offer.
        offers: Words that drafters may need of a rule: `redraw` (`verdict.drawn` is a draw at every node), `rerank`
            (drafters may drop or reorder nodes after seeing their units).
    """

    exactness: str
    needs: frozenset[str]
    offers: frozenset[str]

    def draft_noise(self, round: Round) -> DraftNoise:
        """The noise that a sampled draft must use under this rule."""

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        """Accept a path of the draft. Pure, on the device, no host sync.

        Args:
            draft: The rooted draft.
            scores: The target's distributions at its nodes.
            round: The round's noise.
        """


class DraftsAfresh:
    """A rule under which sampled drafts have noise of their own, new in every round."""

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)


@runtime_checkable
class ByPosition(Protocol):
    """A rule that is not invariant, and yet draws with the noise of positions alone.

    Attributes:
        by_position: Whether it does.
    """

    by_position: bool


def draws_by_position(rule: Rule) -> bool:
    """True if a rule draws with noise by position, which drafts share, and reads no distribution of a draft."""
    return rule.exactness == "invariant" or (isinstance(rule, ByPosition) and rule.by_position)


def walk(draft: Draft, drawn: Tensor, units: Tensor | None = None) -> Verdict:
    """From the root to the child that equals the draw, as deep as possible; all nodes at once.

    Args:
        draft: The rooted draft.
        drawn: One draw at every node, `[batch, node, *draw]`.
        units: The draws' units, `distribution.units(drawn)`, `[batch, node, *unit]`; None if draws are units.
    """
    units = drawn if units is None else units
    if draft.nodes == 1:  # plain decoding needs no walk
        empty = draft.index.parent[:, 1:].expand(len(drawn), 0)
        return Verdict(empty, torch.zeros_like(draft.valid[:, 0], dtype=torch.int64), units[:, 0], drawn)
    index = draft.index
    wanted = units[:, :-1] if index.is_chain else take_nodes(units, index.parent[:, 1:])
    equal = wanted == draft.drafted
    return walk_where(draft, equal.flatten(2).all(-1) if units.dim() > 2 else equal, drawn, units)


def walk_where(
    draft: Draft, accepted: Tensor, drawn: Tensor, units: Tensor | None = None, likely: Tensor | None = None
) -> Verdict:
    """The walk along accepted edges: `accepted [batch, node - 1]` bool, one per drafted node.

    Of paths that are equally deep the one is taken whose last node has the largest of `likely [batch, node]`, or the
    first one.
    """
    units = drawn if units is None else units
    index = draft.index
    kept = torch.cat([torch.ones_like(draft.valid[:, :1]), accepted], 1) & draft.valid
    reached = ~(index.ancestor & ~kept[:, None]).any(-1)  # [batch, node]: the node and all its ancestors are kept
    depth = torch.where(reached, index.depth, -1)
    leaf = depth.argmax(1)
    if likely is not None:
        leaf = torch.where(depth == depth.amax(1, keepdim=True), likely, -torch.inf).argmax(1)
    return Verdict(path_to(draft, leaf), depth.amax(1), take_nodes(units, leaf[:, None])[:, 0], drawn)


def path_to(draft: Draft, leaf: Tensor) -> Tensor:
    """Node ids from the root (exclusive) to `leaf [batch]`, -1 padded: `[batch, depth]`."""
    index, rows = draft.index, len(leaf)
    on_path = take_nodes(index.ancestor.expand(rows, -1, -1), leaf[:, None])[:, 0]  # [batch, node]
    slot = torch.where(on_path, index.depth, index.deepest + 1)
    path = torch.full((rows, index.deepest + 2), -1, device=leaf.device)
    path.scatter_(1, slot, torch.arange(draft.nodes, device=leaf.device).expand(rows, -1))
    return path[:, 1 : index.deepest + 1]
