"""What a rule is, and the walk that all of them share.

Distributions couple, rules walk: a rule draws one unit at every node (freely, by position, or coupled with the drafted
child), and the walk goes from the root to the child that equals the draw, as far as it can.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import take_nodes
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.types import Draft, Scores, Verdict


@runtime_checkable
class Rule(Protocol):
    """Draft + scores → verdict.

    Attributes:
        exactness: `invariant` (the plain output for that seed), `lossless` (the plain distribution), `lossy`, or
            `synthetic`.
        needs: Words that target and drafter must offer between them.
        offers: Words that drafters may need of a rule: `redraw` (`verdict.drawn` is a draw at every node), `rerank`
            (nodes may be dropped or reordered after their unit was seen).

    What a rule may have beside: `mmspec.core.capabilities`.
    """

    exactness: str
    needs: frozenset[str]
    offers: frozenset[str]

    def draft_noise(self, round: Round) -> DraftNoise:
        """The noise that a sampled draft must use under this rule."""
        ...

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        """Decide. Pure, on the device, no host sync.

        Args:
            draft: Rooted.
            scores: The target's distributions at every node of it.
            round: The round's noise.
        """
        ...


def walk(draft: Draft, drawn: Tensor, units: Tensor | None = None) -> Verdict:
    """From the root to the child that equals the draw, as deep as possible; all nodes at once.

    Args:
        draft: Rooted.
        drawn: `[batch, node, *draw]`, one draw at every node.
        units: `[batch, node, *unit]`: what of it is emitted and compared (`distribution.units(drawn)`); None where a
            draw is its unit.
    """
    units = drawn if units is None else units
    if draft.nodes == 1:  # no draft: plain decoding must not pay for a walk
        nowhere = draft.index.parent[:, 1:].expand(len(drawn), 0)
        return Verdict(nowhere, torch.zeros_like(draft.valid[:, 0], dtype=torch.int64), units[:, 0], drawn)
    index = draft.index
    wanted = units[:, :-1] if index.is_chain else take_nodes(units, index.parent[:, 1:])
    equal = wanted == draft.drafted
    return walk_where(draft, equal.flatten(2).all(-1) if units.dim() > 2 else equal, drawn, units)


def walk_where(draft: Draft, match: Tensor, drawn: Tensor, units: Tensor | None = None) -> Verdict:
    """The walk over edges that a rule decided itself: `match [batch, node - 1]`, one per drafted node."""
    units = drawn if units is None else units
    index = draft.index
    stands = torch.cat([torch.ones_like(draft.valid[:, :1]), match], 1) & draft.valid
    reached = ~(index.ancestor & ~stands[:, None]).any(-1)  # [batch, node]: the node and all above it stand
    depth = torch.where(reached, index.depth, -1)
    leaf = depth.argmax(1)
    return Verdict(path_to(draft, leaf), depth.amax(1), take_nodes(units, leaf[:, None])[:, 0], drawn)


def path_to(draft: Draft, leaf: Tensor) -> Tensor:
    """Node ids from the root (exclusive) to `leaf [batch]`, -1 padded: `[batch, depth]`."""
    index, rows = draft.index, len(leaf)
    on_path = take_nodes(index.ancestor.expand(rows, -1, -1), leaf[:, None])[:, 0]  # [batch, node]
    slot = torch.where(on_path, index.depth, index.deepest + 1)
    path = torch.full((rows, index.deepest + 2), -1, device=leaf.device)
    path.scatter_(1, slot, torch.arange(draft.nodes, device=leaf.device).expand(rows, -1))
    return path[:, 1 : index.deepest + 1]
