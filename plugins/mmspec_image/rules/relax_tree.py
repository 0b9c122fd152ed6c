"""A relaxed rule along a tree: siblings are tried one after another, each as a point mass. Lossy.

The tree form of LANTERN (Jang et al., arXiv 2410.03355), whose drafter is a head that drafts trees. A child x is kept
with probability r(G), where r is the target's distribution at first, and G the group of x under r; a refused child
leaves the rule's residual of r, which is the next child's r. Nothing is asked of how the units were chosen, so that
nodes may be dropped and reordered after they were seen.
Guarantee: none. With groups of one unit every node is exact: x is kept with probability r(x), else r loses x.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import Categorical
from mmspec.core.noise import Round
from mmspec.core.rules.rule import walk
from mmspec.core.rules.siblings import Tried, children_of, residual, siblings_walked
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_image.rules.relax import Relaxation, unaltered


def relax_tree(rule: Relaxation, draft: Draft, scores: Scores, round: Round) -> Verdict:
    """The verdict of a relaxed rule on a tree, with its bias where the rule measures."""
    distribution = scores.distribution
    if not isinstance(distribution, Categorical):  # a point mass: nothing is relaxed
        return unaltered(rule, draft, walk(draft, distribution.draw(round.fresh(draft.nodes))))
    verdict = siblings_walked(draft, distribution, round, _Trial(rule))
    return _measured(rule, verdict, draft, distribution) if rule.measure else verdict


@dataclass(frozen=True)
class _Trial:
    """A child is kept with the probability of its group, and leaves the rule's residual."""

    rule: Relaxation

    def __call__(self, rest: Tensor, x: Tensor, child: Tensor) -> Tried:
        chance, left = _decided(self.rule, rest, x)
        return Tried(chance, torch.ones_like(chance), left)


def _decided(rule: Relaxation, rest: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The probability that `x [batch, node]` is kept, and what it leaves of `rest [batch, node, vocab]` if refused."""
    group = rule.groups(rest)(x[..., None])
    point = torch.zeros_like(rest).scatter(-1, x[..., None], 1.0)
    return group.mass(rest)[..., 0], rule.left(rest, point, group)


def _measured(rule: Relaxation, verdict: Verdict, draft: Draft, distribution: Categorical) -> Verdict:
    """The verdict with the bias at the nodes of the accepted path; 0 at nodes without children, and elsewhere.

    The distribution of the unit behind a node is known in closed form: of child k its chance times that of all earlier
    ones to be refused, and of all others what the last residual gives them.
    """
    path = pad(verdict.path, (1, 0))  # the root first
    nodes = path.clamp(min=0)
    p = distribution.take(nodes).on(None)  # [batch, depth, vocab]
    first, sibling = children_of(draft)
    child = first.gather(1, nodes)
    rest, refused, drafted, out = p, torch.ones_like(p[..., 0]), torch.zeros_like(p), torch.zeros_like(p)
    for _ in range(draft.index.widest):
        there, x = child > 0, draft.units.gather(1, child)
        chance, left = _decided(rule, rest, x)
        chance = torch.where(there, chance.clamp(max=1), 0.0)
        out = out.scatter_add(-1, x[..., None], (refused * chance)[..., None])
        drafted = drafted.scatter_add(-1, x[..., None], there.to(p.dtype)[..., None])
        rest = torch.where(there[..., None], residual(rest, left), rest)
        refused = refused * (1 - chance)
        child = torch.where(there, sibling.gather(1, child), 0)
    out = out + refused[..., None] * rest
    exact = (p * (drafted > 0)).sum(-1)  # siblings without relaxation: one of them is kept if p draws it
    at = torch.where(path < 0, draft.nodes, path)
    none = torch.zeros(len(p), draft.nodes + 1, dtype=p.dtype, device=p.device)
    tv, excess_acceptance = (
        none.scatter(1, at, values)[:, :-1] for values in ((out - p).abs().sum(-1) / 2, 1 - refused - exact)
    )
    return replace(verdict, tv=tv, excess_acceptance=excess_acceptance)
