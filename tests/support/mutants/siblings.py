"""Bugs of trees: several draws at one node, siblings out of order, residuals that do not sum to 1."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, dense, take_nodes
from mmspec.core.drafters.growing import Growth
from mmspec.core.drafters.shapes import beam, branching
from mmspec.core.noise import Round, Substream
from mmspec.core.rules import Match, RecursiveRejection, siblings, walk, walk_where
from mmspec.core.types import Draft, Scores, Verdict
from tests.support.mutants.mutant import RSD, Mutant, both, replacing


def _per_row_draws(original: Callable) -> Callable:
    def accept(self: Any, draft: Draft, scores: Scores, round: Round) -> Verdict:
        at_parent = scores.distribution.take(draft.index.parent[:, 1:].clamp(min=0))
        own = at_parent.draw(round.fresh(draft.nodes - 1).substream(Substream.COIN))
        return walk_where(draft, own == draft.drafted, scores.distribution.draw(round.fresh(draft.nodes)))

    return accept


def _coin_per_parent(original: Callable) -> Callable:
    """Children take consecutive pieces of [0, 1) of length p; equal children take two."""

    def accept(self: Any, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution, index, noise = scores.distribution, draft.index, round.fresh(draft.nodes)
        assert isinstance(distribution, Categorical)
        parent = index.parent[:, 1:].expand(len(draft.units), -1)
        p = take_nodes(distribution.probs, parent).gather(-1, draft.drafted[..., None])[..., 0]
        earlier = (parent[:, :, None] == parent[:, None]) & torch.ones(p.shape[1], p.shape[1]).tril(-1).bool()
        below = (earlier * p[:, None]).sum(-1)
        coin = noise.substream(Substream.COIN).uniform().gather(1, parent)
        children = torch.zeros_like(distribution.probs)
        for child in range(p.shape[1]):
            children[torch.arange(len(p)), parent[:, child], draft.drafted[:, child]] = 1
        rest = distribution.probs * (1 - children)
        drawn = Categorical(torch.where(rest.sum(-1, keepdim=True) > 0, rest, distribution.probs)).draw(noise)
        return walk_where(draft, (below <= coin) & (coin < below + p), drawn)

    return accept


def _resorted(original: Callable) -> Callable:
    """For trees of one level: the likelier sibling first, distributions rebuilt as if it had been drawn first."""

    def accept(self: Any, draft: Draft, scores: Scores, round: Round) -> Verdict:
        if draft.distribution is None:
            return original(self, draft, scores, round)
        q: Tensor = draft.distribution.probs[:, :1]  # type: ignore[attr-defined]
        order = q[:, 0].gather(1, draft.drafted).argsort(1, descending=True)
        units, distributions = draft.drafted.gather(1, order), [q]
        for rank in range(units.shape[1] - 1):
            left = distributions[-1].scatter(-1, units[:, rank, None, None], 0.0)
            distributions.append(left / left.sum(-1, keepdim=True))
        units = torch.cat([draft.units[:, :1], units], 1)
        return original(
            self, replace(draft, units=units, distribution=Categorical(torch.cat(distributions, 1))), scores, round
        )

    return accept


def _as_if_replaced(original: Callable) -> Callable:
    """For trees of one level: every sibling is reported with the first one's distribution."""

    def accept(self: Any, draft: Draft, scores: Scores, round: Round) -> Verdict:
        if draft.distribution is not None:
            draft = replace(
                draft, distribution=draft.distribution.take(torch.zeros(1, draft.nodes - 1, dtype=torch.int64))
            )
        return original(self, draft, scores, round)

    return accept


def _not_renormalised(original: Callable) -> Callable:
    def distribution_of(distribution: Categorical, parent: Tensor, rank: Tensor, children: Tensor) -> Categorical:
        probs = original(distribution, parent, rank, children).probs
        return Categorical(torch.where(probs > 0, take_nodes(distribution.probs, parent), 0.0))

    return distribution_of


def _best_of_the_sampled(original: Callable) -> Callable:
    """Half of the nodes are dropped: those of the smallest own q, which EAGLE-2's rerank would not verify."""

    def finish(self: Growth) -> tuple[Draft, Any]:
        draft, scratch = original(self)
        if draft.distribution is None:
            return draft, scratch
        own = draft.distribution.of(draft.units)
        rank = own.argsort(1, descending=True).argsort(1)
        return replace(draft, valid=draft.valid & (rank < (own.shape[1] + 1) // 2)), scratch

    return finish


def at_every_node(draft: Draft, scores: Scores, round: Round) -> tuple[Tensor, Tensor]:
    """Recursive rejection at all nodes at once: accepted edges `[batch, node - 1]`, and units drawn `[batch, node]`."""
    distribution, index, rows = scores.distribution, draft.index, len(draft.units)
    assert isinstance(distribution, Categorical)
    noise, rest = round.fresh(draft.nodes), distribution.on(None)
    proposals = dense(draft.distribution, draft.drafted, distribution.size)
    coin = noise.substream(Substream.COIN).uniform()
    taken, edge = torch.zeros_like(draft.valid), torch.zeros_like(draft.valid)
    drawn = torch.zeros_like(draft.units)
    for rank in range(index.widest):
        below = index.parent[:, None] == torch.arange(draft.nodes)[:, None]
        below = (below & (index.rank == rank)[:, None]).expand(rows, -1, -1) & draft.valid[:, None]
        child = torch.where(below.any(-1), below.int().argmax(-1), 0)  # [batch, node]: 0 if there is none
        q, x = take_nodes(proposals, (child - 1).clamp(min=0)), draft.units.gather(1, child)
        p_x, q_x = (values.gather(-1, x[..., None])[..., 0] for values in (rest, q))
        kept = (coin.gather(1, child) * q_x < p_x) & (child > 0) & ~taken
        drawn, taken = torch.where(kept, x, drawn), taken | kept
        edge |= torch.zeros_like(edge).scatter_(1, torch.where(kept, child, 0), True)
        residual = (rest - q).clamp(min=0)
        total = residual.sum(-1, keepdim=True)
        rest = torch.where((child > 0)[..., None] & (total > 0), residual / total, rest)
    last = Categorical(rest).draw(noise.substream(Substream.RESIDUAL))
    return edge[:, 1:], torch.where(taken, drawn, last)


def _by_units(original: Callable) -> Callable:
    def accept(self: Any, draft: Draft, scores: Scores, round: Round) -> Verdict:
        if draft.nodes == 1 or draft.distribution is None:
            return original(self, draft, scores, round)
        return walk(draft, at_every_node(draft, scores, round)[1])

    return accept


MUTANTS = (
    Mutant(
        "per-row-draws-on-a-shared-node",
        "at a node that several candidate paths share, each path draws for itself, and the longest match wins",
        "Medusa's nucleus mode (arXiv 2401.10774), REST (arXiv 2311.08252)",
        replacing(Match, "accept", _per_row_draws),
    ),
    Mutant(
        "equal-siblings-claim-twice",
        "one coin per parent, and a sibling that occurs twice is accepted with twice its probability",
        "target-only verification of trees whose siblings may be equal",
        replacing(Match, "accept", _coin_per_parent),
    ),
    Mutant(
        "deepest-of-equal-siblings",
        "of equal siblings the one that leads deeper is followed: the better of two draws",
        "trees as in SpecInfer (arXiv 2305.09781), walked by comparing units; the first version of this core",
        replacing(RecursiveRejection, "accept", _by_units),
    ),
    Mutant(
        "siblings-resorted-by-q",
        "siblings drawn without replacement are tried in the order of q, not of their draw",
        "EAGLE-2's reranking (arXiv 2406.16858) with sampled siblings; measured mean total variation 0.206",
        replacing(RecursiveRejection, "accept", _resorted),
    ),
    Mutant(
        "without-replacement-reported-as-with",
        "siblings are drawn without replacement, and all are reported with the whole q",
        f"{RSD} without the update of q after a refused sibling",
        replacing(RecursiveRejection, "accept", _as_if_replaced),
    ),
    Mutant(
        "residual-without-renormalising",
        "the second sibling is tested against (p - q)+ before normalisation",
        f"{RSD}, which have p' = norm(max(p' - q', 0))",
        replacing(siblings, "residual", lambda original: lambda rest, left: left),
    ),
    Mutant(
        "sibling-distribution-without-renormalising",
        "a later sibling's distribution is q with its earlier siblings at 0, not normalised",
        f"{RSD}, which have q' = norm(q')",
        both(
            replacing(branching, "distribution_of", _not_renormalised),
            replacing(beam, "distribution_of", _not_renormalised),
        ),
    ),
    Mutant(
        "rerank-of-sampled-siblings",
        "of siblings sampled without replacement those with the largest q are verified, by recursive rejection",
        "EAGLE-2's reranking (arXiv 2406.16858), which is exact under `match` and for point masses only",
        replacing(Growth, "finish", _best_of_the_sampled),
    ),
)
