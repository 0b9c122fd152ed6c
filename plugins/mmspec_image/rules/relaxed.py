"""`relaxed`: accept a draft by the probability of codes with similar embeddings. Lossy.

LANTERN (Jang et al., arXiv 2410.03355) and LANTERN++ (2502.06352): A(x) are the codes nearest to x in the codebook, `k`
at most, as many as their mass stays within a bound: δ (LANTERN), or (λ - 1) p(x) (LANTERN++, `lam`). x is kept with
probability min(1, (p(x) + p(A)) / q(x)). A rejected draft is replaced by a draw from norm((p - q)+), or in the paper
from norm((p' - q)+), p' being p with the mass of A(x) moved onto x. Their code does otherwise (`residual=released`):
where A(x) has a member, all of the k + 1 nearest codes, within the bound or not, are left out of q before it is taken
from p, and behind a point mass out of p. In a tree siblings are tried in turn, as point masses.
Guarantee: none; with `k=0`, `delta=0` or `lam=1` it is `rejection`. δ bounds the mass that each x moves, not the bias
of the output, which is the excess acceptance: TV(out, p) = α_relaxed - α_exact, with the first two residuals. With the
released one it is at most that and what the residual adds, which is what is measured along chains.
Knobs: `k`, `delta` (both as released), `lam` (larger: accepts more, alters more), `residual`, `measure`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import Categorical
from mmspec.core.noise import Round
from mmspec.core.rules.rule import DraftsAfresh, walk
from mmspec.core.rules.siblings import Tried, children_of, residual, siblings_walked
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option
from mmspec_image.rules.relax import WIDEST, Codes, Group, Groups, Relaxation, excess, gain, nearest, relax, unaltered
from mmspec_image.specs import RELAXED

FEW = 1 << 18  # most products of vocabulary and neighbours for which the bias of a node is computed over the vocabulary


@dataclass(frozen=True)
class RelaxedOptions:
    k: Annotated[int, Field(ge=0)] = option(
        1000, "nearest codes that may stand in; 0 is exact, more accept more and alter more"
    )
    delta: Annotated[float, Field(ge=0, le=1)] = option(
        0.1, "most mass of the codes that stand in; 0 is exact, larger alters more"
    )
    lam: Annotated[float, Field(ge=1)] | None = option(
        None, "bound that mass by (lam - 1) p(x) instead of delta; 1 is exact"
    )
    residual: Literal["plain", "paper", "released"] = option(
        "plain", "what a refused draft leaves: (p - q)+, the paper's, or their code's"
    )
    measure: bool = option(True, "compute the bias of every unit; False saves time, the report then has no bias")


class Relaxed(DraftsAfresh):
    exactness: str = RELAXED.exactness
    needs, offers = RELAXED.needs, RELAXED.offers

    def __init__(self, options: RelaxedOptions = RelaxedOptions()) -> None:
        self.options = options
        self.measure = options.measure
        self._nearest: Tensor | None = None  # `[code, k]`: ids
        self._rows: Tensor  # `[vocab]`: the code that an id is; -1: none

    def bind(self, target: Any) -> None:
        """Compute the nearest codes of every code, by the entries of the codebook."""
        codes = Codes.of(target)
        seen = self.options.k + (self.options.residual == "released")
        self._nearest = codes.ids[nearest(codes.vectors, min(seen, len(codes.ids) - 1))]
        self._rows = codes.rows

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        judged = relax if draft.index.is_chain else relax_tree
        return judged(self, draft, scores, round)

    def groups(self, probs: Tensor) -> Groups:
        """Groups: the unit itself, then the nearest codes as long as their mass is within the bound."""
        assert self._nearest is not None, "the rule was not bound to a target"
        codes, rows, delta, lam = self._nearest, self._rows, self.options.delta, self.options.lam
        most = self.options.k
        # Codes without mass would be members even then: they add nothing, but the paper's residual would lack them.
        strict = delta == 0 if lam is None else lam == 1

        def of(x: Tensor) -> Group:
            row, own = rows[x][..., None], probs.gather(-1, x)[..., None]  # [batch, node, unit, 1]
            ids = codes[row[..., 0]]  # [batch, node, unit, k]
            within = probs.gather(-1, ids.flatten(2)).reshape(ids.shape).cumsum(-1)
            inside = (within <= (delta if lam is None else (lam - 1) * own)) & (not strict) & (row >= 0)
            inside = inside & (torch.arange(inside.shape[-1], device=x.device) < most)
            itself = torch.ones_like(own, dtype=torch.bool)
            return Group(torch.cat([x[..., None], ids], -1), torch.cat([itself, inside], -1))

        return of

    def against(self, group: Group, draft: Tensor, x: Tensor) -> Tensor:
        return draft.gather(-1, x)

    def left(self, probs: Tensor, draft: Tensor, group: Group) -> Tensor:
        """The residual (p - q)+, (p' - q)+, or the released one, not normalised."""
        if self.options.residual == "paper":
            moved = torch.where(group.members(probs.shape[-1]), 0.0, probs)
            probs = moved.scatter(-1, group.ids[:, :, :, 0], group.mass(probs))
        if self.options.residual == "released":
            ids, related = group.ids[:, :, 0, 1:], group.inside[:, :, 0, 1:].any(-1, keepdim=True)
            near = torch.zeros_like(probs, dtype=torch.bool).scatter(-1, ids, related.expand_as(ids))
            point = (draft.amax(-1, keepdim=True) >= 1).to(draft.dtype)  # of which nothing near is left
            draft = torch.where(near, point, draft)
        return (probs - draft).clamp(min=0)

    def bias(self, probs: Tensor, draft: Tensor, x: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """The excess acceptance, which is the total variation as well, also for the paper's residual; where vocabulary
        times neighbours is too much, the estimate a - a* of the drafted unit x ~ q alone. With the released residual
        the total variation is at most the first number: the distance of what x leaves from (p - q)+ is added.
        """
        assert self._nearest is not None
        size = 1 + self._nearest.shape[1]
        if min(probs.shape[-1], WIDEST) * size <= FEW:
            extra = excess(probs, draft, groups, size, self.against).sum(-1)
        else:
            extra = gain(probs, draft, x, groups(x), self.against)[..., 0]
        if self.options.residual != "released":
            return extra, extra
        group = groups(x)
        kept = group.mass(probs) / draft.gather(-1, x).clamp(min=torch.finfo(probs.dtype).tiny)
        ours, theirs = (
            residual(probs, left) for left in ((probs - draft).clamp(min=0), self.left(probs, draft, group))
        )
        return extra + (1 - kept.clamp(max=1))[..., 0] * (ours - theirs).abs().sum(-1) / 2, extra


def relax_tree(rule: Relaxation, draft: Draft, scores: Scores, round: Round) -> Verdict:
    """The verdict of a relaxed rule on a tree, with its bias where the rule measures.

    The tree form of LANTERN, whose drafter is a head that drafts trees. A child x is kept with probability r(G), where
    r is the target's distribution at first, and G the group of x under r; a refused child leaves the rule's residual of
    r, which is the next child's r. Nothing is asked of how the units were chosen, so that nodes may be dropped and
    reordered after they were seen. With groups of one unit every node is exact: x is kept with probability r(x), else
    r loses x.
    """
    distribution = scores.distribution
    if not isinstance(distribution, Categorical):  # a point mass: nothing is relaxed
        return unaltered(rule, draft, walk(draft, distribution.draw(round.fresh(draft.nodes))))
    verdict = siblings_walked(draft, distribution, round, _Trial(rule))
    return _measured(rule, verdict, draft, distribution) if rule.measure else verdict


@dataclass(frozen=True, eq=False)
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

    The distribution of the unit behind a node is known in closed form: of child k its chance times the chance that all
    earlier ones are refused, and of all others what the last residual gives them.
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
