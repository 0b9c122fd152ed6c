"""The walk that tries the siblings of a tree one after another, which rules of trees share.

At every node it begins with r = p and tries the children in their order. A rule says with what probability a child is
kept, and what r a refused one leaves. If no child is kept, the unit is drawn from the last r. The walk tries one child
of every row at a time and holds one residual a row: memory does not grow with trees, and the steps are those of the
longest walk (10 in a tree of 4, 16 and 43 nodes), not the nodes.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import Categorical, dense_at
from mmspec.core.noise import Round, Substream
from mmspec.core.once import known
from mmspec.core.rules.rule import path_to
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Verdict


class Tried(NamedTuple):
    """One child of every row: it is kept with probability min(1, mass / against)."""

    mass: Tensor  # `[batch, 1]`
    against: Tensor  # `[batch, 1]`
    left: Tensor  # `[batch, 1, vocab]`: what a refused child leaves of r, not normalised


class Trial(Protocol):
    """A rule's judgement of a child; the walk, and torch, call it at every step."""

    def __call__(self, rest: Tensor, x: Tensor, child: Tensor) -> Tried:
        """Try one child of every row.

        Args:
            rest: r, `[batch, 1, vocab]`.
            x: The children's units, `[batch, 1]`.
            child: Their nodes, `[batch, 1]`; 0: no child is left, and what is returned does not count.
        """


def siblings_walked(draft: Draft, distribution: Categorical, round: Round, trial: Trial) -> Verdict:
    """The verdict of such a walk over a rooted draft with a node beside its root, where `trial` is the rule.

    `drawn` is meaningful on the accepted path only.
    """
    noise = round.fresh(draft.nodes)
    coin = noise.substream(Substream.COIN).uniform()
    readable = draft.units.device.type == "cpu" and not torch.compiler.is_compiling()
    index, size, (first, sibling) = draft.index, distribution.size, children_of(draft)
    coin[:, 0] = torch.inf  # node 0 is nobody's child: it stands for "no child is left", and is not kept
    here = torch.zeros_like(draft.units[:, :1])  # [batch, 1]: the node that the walk has reached
    child = first[:, :1]  # the next one to try there
    rest = dense_at(distribution, draft.units, size, slice(0, 1))  # [batch, 1, vocab]: r there
    for _ in range(_longest_walk(index)):
        if readable and not child.any():  # elsewhere this would be a host sync, or a shape that depends on data
            break
        tried = trial(rest, draft.units.gather(1, child), child)
        # Units are not compared: of equal siblings only the accepted one may be followed. Following whichever leads
        # deeper would pick the better of two draws.
        kept = coin.gather(1, child) * tried.against < tried.mass
        rest = torch.where(((child > 0) ^ kept)[..., None], residual(rest, tried.left), rest)
        rest = torch.where(kept[..., None], distribution.take(child).on(None), rest)
        here = torch.where(kept, child, here)
        child = torch.where(kept, first.gather(1, child), sibling.gather(1, child))
    last = Categorical(rest).draw(noise.substream(Substream.RESIDUAL).at(here))
    path, length = path_to(draft, here[:, 0]), index.depth.expand(len(here), -1).gather(1, here)[:, 0]
    # A unit was drawn at its parent; those that were not accepted go behind the nodes, and are cut off.
    at = torch.where(path < 0, draft.nodes, index.parent.expand(len(here), -1).gather(1, path.clamp(min=0)))
    drawn = pad(torch.zeros_like(draft.units), (0, 1)).scatter(1, at, draft.units.gather(1, path.clamp(min=0)))
    return Verdict(path, length, last[:, 0], drawn[:, :-1].scatter(1, here, last))


def residual(rest: Tensor, left: Tensor) -> Tensor:
    """The rest behind a refused child, normalised; r if rounding leaves nothing. All are `[batch, node, vocab]`."""
    # A sum to a single number is cut among threads, and is rounded otherwise than that of a row among others.
    total = left.expand(-1, max(2, left.shape[1]), -1).sum(-1, keepdim=True)[:, : left.shape[1]]
    return torch.where(total > 0, left / total, rest)


def children_of(draft: Draft) -> tuple[Tensor, Tensor]:
    """Every node's first valid child, and its next valid sibling: `[batch, node]`, 0 if there is none.

    Nodes follow their parents, and siblings each other in the order of their draw.
    """
    parent, order = draft.index.parent, torch.arange(draft.nodes, device=draft.units.device)
    child = (parent[:, None] == order[:, None]) & draft.valid[:, None]  # [batch, node, other]
    sibling = (parent[:, None] == parent[..., None]) & (order > order[:, None]) & draft.valid[:, None]
    return child.int().argmax(-1), sibling.int().argmax(-1)


def _longest_walk(index: TreeIndex) -> int:
    """Most children that a walk can try; for trees of a row's own, whose shape is on the device, a bound."""
    return index.nodes - 1 if index.listed is None else _counted(index.listed)


@known
def _counted(parents: tuple[int, ...]) -> int:
    """To a node and past all of its children: the earlier siblings of every node on the way are tried, too."""
    children, walk = [0] * len(parents), [0] * len(parents)  # walk: children tried when the node is reached
    for node, parent in enumerate(parents[1:], 1):
        children[parent] += 1
        walk[node] = walk[parent] + children[parent]
    return max(reached + left for reached, left in zip(walk, children, strict=True))
