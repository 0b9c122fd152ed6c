"""`recursive-rejection`: trees whose siblings were sampled, with or without replacement.

SpecInfer (arXiv 2305.09781), SpecTr (2310.15141), Sequoia (2402.12374), RSD (2402.14160): siblings are tried in the
order in which they were drawn, starting with r = p; child k is accepted with probability min(1, r(x) / q_k(x)), else r
becomes the normalised (r - q_k)+; if no child is accepted, the unit is drawn from the last r. `draft.distribution` is
the distribution that each sibling was really drawn from: without replacement, q without its earlier siblings,
renormalised.
Guarantee: `lossless`. The walk tries one child of every row at a time and holds one residual a row: memory does not
grow with trees, and the steps are those of the longest walk (10 in a tree of 4, 16 and 43 nodes), not the nodes.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import Categorical, PointMass, dense, dense_at
from mmspec.core.kernels.fused import siblings_tried
from mmspec.core.manifest import RECURSIVE_REJECTION
from mmspec.core.noise import DraftNoise, Round, SpreadNoise, Substream
from mmspec.core.rules.rule import path_to, walk
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores, Verdict


class RecursiveRejection:
    """See the module. No knobs. `verdict.drawn` is meaningful on the accepted path only."""

    exactness: str = RECURSIVE_REJECTION.exactness
    needs, offers = RECURSIVE_REJECTION.needs, RECURSIVE_REJECTION.offers

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        noise, distribution = round.fresh(draft.nodes), scores.distribution
        if draft.nodes == 1 or draft.distribution is None or isinstance(distribution, PointMass):
            # One draw per depth: equal siblings then agree, and the walk cannot pick the better of two draws.
            index = draft.index
            shared = noise if index.is_chain else SpreadNoise(round.fresh(index.deepest + 1), index.depth)
            # In the substream of residuals, so that a row's draw does not depend on whether another row has a draft.
            return walk(draft, distribution.draw(shared.substream(Substream.RESIDUAL)))
        fused = siblings_tried(draft, distribution, round)
        if fused is not None:  # the same in one launch
            return fused
        assert isinstance(distribution, Categorical)
        coin = noise.substream(Substream.COIN).uniform()
        readable = draft.units.device.type == "cpu" and not torch.compiler.is_compiling()
        index, size, (first, sibling) = draft.index, distribution.size, _tables(draft)
        coin[:, 0] = torch.inf  # node 0 is nobody's child: it stands for "no child is left", and is not kept
        here = torch.zeros_like(draft.units[:, :1])  # [batch, 1]: the node that the walk has reached
        child = first[:, :1]  # the next one to try there
        rest = dense_at(distribution, draft.units, size, slice(0, 1))  # [batch, 1, vocab]: r there
        for _ in range(_longest_walk(index)):
            if readable and not child.any():  # elsewhere this would be a host sync, or a shape that depends on data
                break
            x = draft.units.gather(1, child)
            q = dense(draft.distribution.take((child - 1).clamp(min=0)), x, size)
            p_x, q_x = (values.gather(-1, x[..., None])[..., 0] for values in (rest, q))
            # Units are not compared: of equal siblings only the accepted one may be followed. Following whichever leads
            # deeper would pick the better of two draws.
            kept = coin.gather(1, child) * q_x < p_x
            rest = torch.where(((child > 0) ^ kept)[..., None], self._residual(rest, q), rest)
            rest = torch.where(kept[..., None], distribution.take(child).on(None), rest)
            here = torch.where(kept, child, here)
            child = torch.where(kept, first.gather(1, child), sibling.gather(1, child))
        last = Categorical(rest).draw(noise.substream(Substream.RESIDUAL).at(here))
        path, length = path_to(draft, here[:, 0]), index.depth.expand(len(here), -1).gather(1, here)[:, 0]
        # A unit was drawn at its parent; those that were not accepted go behind the nodes, and are cut off.
        at = torch.where(path < 0, draft.nodes, index.parent.expand(len(here), -1).gather(1, path.clamp(min=0)))
        drawn = pad(torch.zeros_like(draft.units), (0, 1)).scatter(1, at, draft.units.gather(1, path.clamp(min=0)))
        return Verdict(path, length, last[:, 0], drawn[:, :-1].scatter(1, here, last))

    @staticmethod
    def _residual(rest: Tensor, q: Tensor) -> Tensor:
        """The residual after a refused child: the normalised (r - q)+, or r itself if rounding leaves nothing."""
        residual = (rest - q).clamp(min=0)
        # A sum to a single number is cut among threads, and is rounded otherwise than that of a row among others.
        total = residual.expand(-1, 2, -1).sum(-1, keepdim=True)[:, :1]
        return torch.where(total > 0, residual / total, rest)


def _tables(draft: Draft) -> tuple[Tensor, Tensor]:
    """Every node's first valid child, and its next valid sibling: `[batch, node]`, 0 if there is none.

    Nodes follow their parents, and siblings each other in the order of their draw.
    """
    parent, order = draft.index.parent, torch.arange(draft.nodes, device=draft.units.device)
    child = (parent[:, None] == order[:, None]) & draft.valid[:, None]  # [batch, node, other]
    sibling = (parent[:, None] == parent[..., None]) & (order > order[:, None]) & draft.valid[:, None]
    return child.int().argmax(-1), sibling.int().argmax(-1)


def _longest_walk(index: TreeIndex) -> int:
    """Most children that a walk can try; for trees of a row's own, whose shape is on the device, a bound."""
    if index.listed is None:
        return index.nodes - 1
    return _counted(index.listed) if torch.compiler.is_compiling() else _longest(index.listed)


def _counted(parents: tuple[int, ...]) -> int:
    """To a node and past all of its children: the earlier siblings of every node on the way are tried, too."""
    children, walk = [0] * len(parents), [0] * len(parents)  # walk: children tried when the node is reached
    for node, parent in enumerate(parents[1:], 1):
        children[parent] += 1
        walk[node] = walk[parent] + children[parent]
    return max(reached + left for reached, left in zip(walk, children, strict=True))


_longest = lru_cache(maxsize=256)(_counted)
