"""The common part of relaxed rules: a draft is accepted by the probability of a group, along chain or window. Lossy.

For every drafted unit x a rule gives a group G that contains x. If x was drawn from q, it is accepted with probability
min(1, P(G) / Q), where the rule gives the denominator Q; a rejected draft is replaced by a draw from the rule's
residual. A point mass is accepted with probability P(G), else replaced by a draw from the residual of p. The verdict
follows these draws. Units after the accepted path are drawn as `rejection` would, because the next window's units must
have the distribution that they are reported with; otherwise the measured bias would be wrong.
Guarantee: none. With groups of one unit this is `rejection`, bit for bit: the same coins, the same residuals.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Mixed, couple, dense
from mmspec.core.noise import Noise, Round, Substream
from mmspec.core.rules.rule import walk
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_image.rules.bias import Group, Groups


class Relaxation(Protocol):
    """A relaxed rule."""

    measure: bool  # whether verdicts contain the bias

    def groups(self, probs: Tensor) -> Groups:
        """The groups of units under the target's `probs [batch, node, vocab]`."""

    def against(self, group: Group, draft: Tensor, x: Tensor) -> Tensor:
        """The denominator Q of the units `x [batch, node, unit]` under the draft's `[batch, node, vocab]`."""

    def left(self, probs: Tensor, draft: Tensor, group: Group) -> Tensor:
        """The residual after each node's one unit is rejected, not normalised: `[batch, node, vocab]`."""

    def bias(self, probs: Tensor, draft: Tensor, x: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """Total variation and excess acceptance, `[batch, node]` each, where `x [batch, node, 1]` was drafted."""


def relax(rule: Relaxation, draft: Draft, scores: Scores, round: Round) -> Verdict:
    """The verdict of a relaxed rule, with its bias where the rule measures."""
    distribution, last = scores.distribution, draft.nodes - 1
    free = distribution.draw(round.fresh(draft.nodes))
    if not last or not isinstance(distribution, Categorical):  # no draft, or a point mass: nothing is relaxed
        return unaltered(rule, draft, walk(draft, free))
    noise, valid = round.fresh(last), draft.valid[:, 1:]
    offer = Offer.of(draft, distribution)
    groups = rule.groups(offer.p)
    exact = couple(distribution.take(draft.index.parent[:, 1:]), draft.distribution, offer.x, noise)
    relaxed = torch.where(
        offer.point, _by_point(rule, offer, groups, free[:, :last], noise), _by_distribution(rule, offer, groups, noise)
    )
    relaxed, exact = (
        torch.cat([torch.where(valid, drawn, free[:, :last]), free[:, last:]], 1) for drawn in (relaxed, exact)
    )
    verdict = walk(draft, relaxed)
    behind = torch.arange(draft.nodes, device=free.device) > verdict.length[:, None]
    verdict = replace(verdict, drawn=torch.where(behind, exact, relaxed))
    return _measured(rule, verdict, offer, valid) if rule.measure else verdict


def unaltered(rule: Relaxation, draft: Draft, verdict: Verdict) -> Verdict:
    """A verdict in which nothing was relaxed: its bias is 0 where the rule measures."""
    nothing = torch.zeros(draft.valid.shape, dtype=torch.float32, device=draft.units.device) if rule.measure else None
    return replace(verdict, tv=nothing, excess_acceptance=nothing)


@dataclass(frozen=True)
class Offer:
    """Target, draft and drafted unit at every node of a chain but the last."""

    p: Tensor  # the target's distribution, `[batch, node, vocab]`
    q: Tensor  # the draft's distribution, point masses as one-hot rows
    x: Tensor  # the drafted units, `[batch, node]`
    point: Tensor  # which of them are point masses: `[batch, node]` bool

    @staticmethod
    def of(draft: Draft, distribution: Categorical) -> "Offer":
        """The offer of a rooted chain."""
        x = draft.drafted
        point = torch.full_like(x, not isinstance(draft.distribution, Categorical), dtype=torch.bool)
        if isinstance(draft.distribution, Mixed):
            point = ~draft.distribution.random.expand_as(x)
        return Offer(distribution.on(None)[:, :-1], dense(draft.distribution, x, distribution.size), x, point)


def _by_distribution(rule: Relaxation, offer: Offer, groups: Groups, noise: Noise) -> Tensor:
    """x where its coin is below P(G) / Q, else a draw from the residual: `[batch, node]`."""
    x = offer.x[..., None]
    group = groups(x)
    kept = noise.substream(Substream.COIN).uniform()[..., None] * rule.against(group, offer.q, x) < group.mass(offer.p)
    left = rule.left(offer.p, offer.q, group)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, offer.p)
    rest = (left / noise.substream(Substream.RESIDUAL).exponential(left.shape[-1])).argmax(-1)
    return torch.where(kept[..., 0], offer.x, rest)


def _by_point(rule: Relaxation, offer: Offer, groups: Groups, free: Tensor, noise: Noise) -> Tensor:
    """x where a free draw from p falls into its group, else a draw from the residual: `[batch, node]`.

    A free draw outside of the group is itself a draw from the residual outside; the residual's share inside is drawn.
    """
    group = groups(offer.x[..., None])
    members = group.members(offer.p.shape[-1])
    left = rule.left(offer.p, torch.zeros_like(offer.p).scatter(-1, offer.x[..., None], 1.0), group)
    inside = left * members
    share = inside.sum(-1) / left.sum(-1).clamp(min=torch.finfo(left.dtype).tiny)
    neighbour = (inside / noise.substream(Substream.RESIDUAL).exponential(left.shape[-1])).argmax(-1)
    other = torch.where(noise.substream(Substream.COIN).uniform() < share, neighbour, free)
    return torch.where(members.gather(-1, free[..., None])[..., 0], offer.x, other)


def _measured(rule: Relaxation, verdict: Verdict, offer: Offer, valid: Tensor) -> Verdict:
    """The verdict with the bias at nodes on the accepted path that have a drafted child; 0 elsewhere."""
    seen = nodes = valid.shape[1]
    # There a host read is free; elsewhere, and while torch traces, shapes stay fixed.
    if valid.device.type == "cpu" and not torch.compiler.is_compiling():
        seen = min(nodes, int(verdict.length.max()) + 1)
    p, q, x = offer.p[:, :seen], offer.q[:, :seen], offer.x[:, :seen, None]
    there = valid[:, :seen] & (torch.arange(seen, device=x.device) <= verdict.length[:, None])
    tv, excess_acceptance = (
        torch.nn.functional.pad(torch.where(there, values, 0.0), (0, nodes + 1 - seen))  # NaN where nothing was drafted
        for values in rule.bias(p, q, x, rule.groups(p))
    )
    return replace(verdict, tv=tv, excess_acceptance=excess_acceptance)
