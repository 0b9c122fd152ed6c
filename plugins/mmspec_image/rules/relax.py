"""The common part of relaxed rules: a draft is accepted by the probability of a group, along chain or window. Lossy.

For every drafted unit x a rule gives a group G that contains x. If x was drawn from q, it is accepted with probability
min(1, P(G) / Q), where the rule gives the denominator Q; a rejected draft is replaced by a draw from the rule's
residual. A point mass is accepted with probability P(G), else replaced by a draw from the residual of p. The verdict
follows these draws. Units after the accepted path are drawn as `rejection` would, because the next window's units must
have the distribution that they are reported with; otherwise the measured bias would be wrong.
Guarantee: none. With groups of one unit this is `rejection`, bit for bit: the same coins, the same residuals.

The bias at a node, in closed form over the vocabulary. A draft x ~ q is accepted with probability a(x); an exact rule
accepts it with a*(x) = min(1, p / q). A rejected draft is replaced by a draw from r = norm((p - q)+). With
e = q (a - a*) the emitted unit has the distribution p + e - (Σ e) r:

    α_relaxed - α_exact = Σ e    and    TV(out, p) = ½ ‖e - (Σ e) r‖₁.

A point mass is the case of a one-hot q. If a >= a* everywhere, e is positive only where q > p and r only where p > q,
so that TV = Σ e: the excess acceptance is the bias.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Mixed, couple, dense
from mmspec.core.noise import Noise, Round, Substream
from mmspec.core.rules.rule import walk
from mmspec.core.types import Draft, Scores, Verdict


@dataclass(frozen=True)
class Group:
    """The groups of some units."""

    ids: Tensor  # `[batch, node, unit, size]`, no unit twice; the unit itself comes first
    inside: Tensor  # bool of the same shape: which of `ids` belong to the group

    def mass(self, probs: Tensor) -> Tensor:
        """Probability of each group under `probs [batch, node, vocab]`: `[batch, node, unit]`."""
        return (probs.gather(-1, self.ids.flatten(2)).reshape(self.ids.shape) * self.inside).sum(-1)

    def members(self, vocab: int) -> Tensor:
        """Membership over the vocabulary, `[batch, node, vocab]` bool, where every node has the group of one unit."""
        ids, inside = self.ids[:, :, 0], self.inside[:, :, 0]
        count = torch.zeros(*ids.shape[:2], vocab, dtype=torch.uint8, device=ids.device)
        return count.scatter_add(-1, ids, inside.to(torch.uint8)) > 0


Groups = Callable[[Tensor], Group]
"""From units `[batch, node, unit]` of a round to their groups under the target's distribution."""


@runtime_checkable
class AmongWords(Protocol):
    """A target some of whose ids are codes, and the others words.

    Its `codebook [code, width]` has the entries of the codes alone; its `code_embeddings [code, width]` are the model's
    embeddings of them.
    """

    code_ids: Tensor  # `[code]`


@dataclass(frozen=True)
class Codes:
    """The vectors by which codes are compared, and whose they are; an id that is no code is like none."""

    vectors: Tensor  # `[code, width]`
    ids: Tensor  # `[code]`
    rows: Tensor  # `[vocab]`: the row of an id in `vectors`; -1: it is no code

    @staticmethod
    def of(target: Any, embeddings: bool = False) -> "Codes":
        """The entries of a target's codebook, or the model's embeddings of its codes if it has words beside them."""
        among_words = isinstance(target, AmongWords)
        if not among_words:
            every = torch.arange(len(target.codebook), device=target.codebook.device)
            return Codes(target.codebook, every, every)
        ids, vectors = target.code_ids, target.code_embeddings if embeddings else target.codebook
        rows = ids.new_full((target.vocab,), -1)
        rows[ids] = torch.arange(len(ids), device=ids.device)
        return Codes(vectors, ids, rows)

    def apart(self, x: Tensor, others: Tensor) -> Tensor:
        """Squared distances of units `x [..., 1]` and `others [..., size]`, in float32: as `others`."""
        one, more = self.rows[x], self.rows[others]
        far = (self.vectors[one].float() - self.vectors[more].float()).square().sum(-1)
        return torch.where((one >= 0) & (more >= 0), far, torch.inf)


def nearest(vectors: Tensor, k: int) -> Tensor:
    """The rows nearest to each row of `vectors [code, width]`, itself left out, `k` of them: `[code, k]`."""
    parts, whole = [], vectors.float()
    for first in range(0, len(whole), SOME):
        some = whole[first : first + SOME]
        own = torch.arange(first, first + len(some), device=whole.device)[:, None]
        parts.append(torch.cdist(some, whole).scatter(1, own, torch.inf).topk(k, largest=False).indices)
    return torch.cat(parts)


SOME = 512  # codes whose distances from all others are in memory together
WIDEST = 4096  # most units per node for which e is computed, the likeliest of q; the others count as unaltered
AT_ONCE = 1 << 22  # most numbers in memory at one step over the vocabulary

Against = Callable[[Group, Tensor, Tensor], Tensor]
"""From a group, q and x to the denominator of the acceptance probability, `[batch, node, unit]`."""


def gain(p: Tensor, q: Tensor, x: Tensor, group: Group, against: Against) -> Tensor:
    """a - a* of the units `x [batch, node, unit]`, with a = min(1, P(G) / Q); p and q are `[batch, node, vocab]`."""
    tiny = torch.finfo(p.dtype).tiny
    relaxed = group.mass(p) / against(group, q, x).clamp(min=tiny)
    exact = p.gather(-1, x) / q.gather(-1, x).clamp(min=tiny)
    return relaxed.clamp(max=1) - exact.clamp(max=1)


def excess(p: Tensor, q: Tensor, groups: Groups, size: int, against: Against) -> Tensor:
    """e over the vocabulary: `[batch, node, vocab]`, of `p` and `q` of that shape and a rule's groups of so many units;
    exact where q has mass on `WIDEST` units at most, as under top-k or in such a vocabulary.
    """
    rows, nodes, vocab = p.shape
    if vocab > WIDEST:
        units = q.topk(WIDEST, -1).indices
    else:
        units = torch.arange(vocab, device=p.device).expand(rows, nodes, -1)
    parts = units.split(max(1, AT_ONCE // (rows * nodes * size)), -1)
    gains = torch.cat([gain(p, q, x, groups(x), against) for x in parts], -1)
    return torch.zeros_like(p).scatter(-1, units, q.gather(-1, units) * gains)


def signed(e: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """½ ‖e - (Σ e) r‖₁ at every node: `[batch, node]`; all arguments are `[batch, node, vocab]`."""
    left = (p - q).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    rest = torch.where(total > 0, left / total.clamp(min=torch.finfo(p.dtype).tiny), p)
    return (e - e.sum(-1, keepdim=True) * rest).abs().sum(-1) / 2


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

    A free draw outside of the group is itself a draw from the residual outside, where that has mass; else, and in the
    residual's share inside, another one is drawn.
    """
    group = groups(offer.x[..., None])
    members = group.members(offer.p.shape[-1])
    left = rule.left(offer.p, torch.zeros_like(offer.p).scatter(-1, offer.x[..., None], 1.0), group)
    stands = left.gather(-1, free[..., None]) > 0
    inside = left * members
    share = inside.sum(-1) / left.sum(-1).clamp(min=torch.finfo(left.dtype).tiny)
    redrawn = torch.where(stands, inside, left)
    neighbour = (redrawn / noise.substream(Substream.RESIDUAL).exponential(left.shape[-1])).argmax(-1)
    again = (noise.substream(Substream.COIN).uniform() < share) | (~stands[..., 0] & (left.sum(-1) > 0))
    other = torch.where(again, neighbour, free)
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
