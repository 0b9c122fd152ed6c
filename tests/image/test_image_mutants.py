"""The bugs of published relaxed rules, each put back by name, and the check that sees it.

A check returns a p-value; where an identity is promised it returns 1.0 (held) or 0.0.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, dense
from mmspec.core.noise import Noise, Round, Substream
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.core.warp import Warp
from mmspec.testing.statistics import LEVEL, joint_p_value
from mmspec_image.drafters.jacobi import ImageJacobi
from mmspec_image.rules import grouped, relax
from mmspec_image.rules.grouped import Grouped, GroupedOptions
from mmspec_image.rules.relax import Group, Groups, Offer
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions
from tests.support.killed import Check, with_the_bug, without_the_bug
from tests.support.laws import ROWS
from tests.support.mutants.mutant import Mutant, replacing
from tests.support.relaxed import nearest_groups, outcome, ranked_groups
from tests.support.toys.picture import PictureTarget

TARGET, LENGTH, VOCAB = PictureTarget.random(3, 6, seed=3, sharpness=1.0), 8, 6
GROUPED = GroupedOptions(size=4, difference=0.3, distance=12.0)


def _released(original: Callable, nothing: Callable[[Tensor], Tensor] = torch.ones_like) -> Callable:
    """LANTERN's dynamic trees: a refused draft takes all k neighbours with it; if nothing is left, `nothing(p)` is."""

    def by_point(rule: Relaxed, offer: Offer, groups: Groups, free: Tensor, noise: Noise) -> Tensor:
        x = offer.x[..., None]
        group, left = groups(x), offer.p.scatter(-1, x, 0.0)
        some = group.inside[:, :, 0, 1:].any(-1, keepdim=True)
        left = torch.where(some, left.scatter(-1, group.ids[:, :, 0, 1:], 0.0), left)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, nothing(offer.p))
        rest = (left / noise.substream(Substream.RESIDUAL).exponential(left.shape[-1])).argmax(-1)
        return torch.where(
            noise.substream(Substream.COIN).uniform()[..., None] < group.mass(offer.p), x, rest[..., None]
        )[..., 0]

    return by_point


def _static(original: Callable) -> Callable:
    def left(self: Relaxed, probs: Tensor, draft: Tensor, group: Group) -> Tensor:
        return (probs - draft.scatter(-1, group.ids[:, :, 0, 1:], 0.0)).clamp(min=0)

    return left


def _sliced(original: Callable) -> Callable:
    """Python's `ranked[rank - 2 : rank + 2]`: below zero it counts from the other end, and is empty."""

    def groups(self: Grouped, probs: Tensor) -> Groups:
        whole, half = original(self, probs), self.options.size // 2

        def of(x: Tensor) -> Group:
            group = whole(x)
            rank = (probs[:, :, None] < probs.gather(-1, x)[..., None]).sum(-1)
            first = torch.arange(group.ids.shape[-1]) == 0
            return replace(group, inside=group.inside & ((rank >= half)[..., None] | first))

        return of

    return groups


def _all_that_was_drawn(original: Callable) -> Callable:
    def worse(rule: Any, draft: Draft, scores: Scores, round: Round) -> Verdict:
        seen: list[Tensor] = []

        def walk(draft: Draft, drawn: Tensor) -> Verdict:
            seen.append(drawn)
            return walked(draft, drawn)

        walked = relax.walk
        with mock.patch.object(relax, "walk", walk):
            verdict = original(rule, draft, scores, round)
        return replace(verdict, drawn=seen[0])

    return worse


def _extra(original: Callable) -> Callable:
    def extra(self: Grouped, probs: Tensor, draft: Tensor, x: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        excess_acceptance = original(self, probs, draft, x, groups)[1]
        return excess_acceptance, excess_acceptance

    return extra


MUTANTS = (
    Mutant(
        "refused-draft-takes-all-neighbours-with-it",
        "what a refused point mass leaves lacks all k neighbours, not only those whose mass was used",
        "LANTERN's released evaluate_posterior (arXiv 2410.03355): TV up to 0.98 where δ = 0.2 is promised",
        replacing(relax, "_by_point", lambda original: _released(original, lambda p: p)),
    ),
    Mutant(
        "uniform-where-nothing-is-left",
        "a residual without mass becomes uniform, so that units of probability 0 come out",
        "LANTERN's released evaluate_posterior (arXiv 2410.03355): empty → ones",
        replacing(relax, "_by_point", _released),
    ),
    Mutant(
        "draft-distribution-without-its-neighbours-in-the-residual",
        "q is zeroed on the neighbours before it is taken from p, so that they come out too often",
        "LANTERN's released static trees (arXiv 2410.03355): q[nearest] = 0, then max(p - q, 0)",
        replacing(Relaxed, "left", _static),
    ),
    Mutant(
        "ranks-by-slices-that-wrap",
        "the window of ranks around an unlikely unit starts below zero and is empty",
        "GSD's released code (arXiv 2508.07747): the lowest ranks fall back to plain ratios",
        replacing(Grouped, "groups", _sliced),
    ),
    Mutant(
        "mass-of-a-group-against-one-unit",
        "p of the whole group is held against q of the unit alone",
        "GSD, equation of the acceptance (arXiv 2508.07747): q is summed over the same set",
        replacing(Grouped, "against", lambda original: lambda self, group, draft, x: draft.gather(-1, x)),
    ),
    Mutant(
        "extra-acceptance-as-bias-of-groups",
        "the total variation under `grouped` is reported as the extra acceptance, which can even be negative",
        "the identity of LANTERN (arXiv 2410.03355) does not hold for groups",
        replacing(Grouped, "bias", _extra),
    ),
    Mutant(
        "altered-units-stay-in-the-window",
        "units that the lossy rule drew behind the walk's end stay as drafts, reported with the target's distribution",
        "this plugin's own first version: it broke the invariant of Jacobi windows (arXiv 2410.01699)",
        replacing(grouped, "relax", _all_that_was_drawn),
    ),
)


def one_node(rule: Any, p: Tensor, q: Tensor | None, x: Tensor, seed: int) -> Tensor:
    """The unit that comes out of a node whose child is `x [rows]`, drawn from q or a point mass: `[rows, 1]`."""
    rows = len(x)
    rule.bind(TARGET)
    distribution = None if q is None else Categorical(q.expand(rows, 1, -1))
    zero = torch.zeros(rows, dtype=torch.int64)
    draft = Draft.chain(x[:, None], distribution).rooted(zero, torch.full_like(zero, 5))
    scores = Scores(Categorical(p.expand(rows, 2, -1)), torch.ones(rows, 2, dtype=torch.bool))
    verdict = rule.accept(draft, scores, Round(PhiloxSource.seeded(seed, rows), zero, [0] * rows))
    return torch.where(verdict.length > 0, x, verdict.unit)[:, None]


def distributions(seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.softmax(torch.randn(VOCAB, generator=g) * 1.5, -1) for _ in range(2))


def point_follows(options: RelaxedOptions, rows: int, seed: int, p: Tensor) -> float:
    x = int(p.argsort()[2])
    groups = nearest_groups(p, options.k, options.delta, options.lam, TARGET.codebook)
    paper = options.residual == "paper"
    distribution = outcome(p, torch.eye(VOCAB)[x], groups, by_group=False, paper=paper).distribution
    assert float((distribution - p).abs().sum()) / 2 <= options.delta + 1e-6  # here, and only here, δ bounds the bias
    return joint_p_value(one_node(Relaxed(options), p, None, torch.full((rows,), x), seed), distribution)


def refused_point_masses(rows: int, seed: int) -> float:
    return point_follows(RelaxedOptions(k=4, delta=0.3, residual="paper"), rows, seed, distributions(11)[0])


def neighbours_that_are_all_there_is(rows: int, seed: int) -> float:
    p = distributions(11)[0]
    p = torch.where(p >= p.topk(3).values[-1], p, 0.0)
    return point_follows(RelaxedOptions(k=5, delta=0.3), rows, seed, p / p.sum())


def refused_draws(rows: int, seed: int) -> float:
    options, (p, q) = RelaxedOptions(k=3, delta=0.3), distributions(11)
    x = torch.multinomial(q, rows, replacement=True, generator=torch.Generator().manual_seed(seed))
    groups = nearest_groups(p, options.k, options.delta, options.lam, TARGET.codebook)
    distribution = outcome(p, q, groups, by_group=False).distribution
    return joint_p_value(one_node(Relaxed(options), p, q, x, seed), distribution)


def groups_are_recounted(rows: int, seed: int) -> float:
    rule, p = Grouped(GROUPED), distributions(seed)[0]
    rule.bind(TARGET)
    group = rule.groups(p.expand(1, 1, -1))(torch.arange(VOCAB).expand(1, 1, -1))
    found = [set(ids[inside].tolist()) for ids, inside in zip(group.ids[0, 0], group.inside[0, 0], strict=True)]
    return float(found == ranked_groups(p, GROUPED.size, GROUPED.difference, GROUPED.distance, TARGET.codebook))


def bias_is_that_of_the_closed_form(rows: int, seed: int) -> float:
    rule, held = Grouped(GROUPED), True
    rule.bind(TARGET)
    for s in range(seed, seed + 20):
        p, q = (distribution.double() / distribution.double().sum() for distribution in distributions(s))
        probs, draft = p[None, None], q[None, None]
        tv, excess_acceptance = rule.bias(probs, draft, q.argmax()[None, None, None], rule.groups(probs))
        groups = ranked_groups(p, GROUPED.size, GROUPED.difference, GROUPED.distance, TARGET.codebook)
        slow = outcome(p, q, groups, by_group=True)
        held &= abs(float(tv) - slow.tv) < 1e-12 and abs(float(excess_acceptance) - slow.excess_acceptance) < 1e-12
    return float(held)


def units_follow_what_is_measured(rows: int, seed: int) -> float:
    """The emitted units against the distribution that the bias is computed from, given all that stood before, in whole
    runs.

    Cells are places and left neighbours: in each, counts less expected counts sum to a martingale, whose variance is at
    most that of Pearson's statistic.
    """
    from scipy.stats import chi2

    rule = Grouped(GroupedOptions(size=4, difference=1.0, distance=1e9))
    decoder = Decoder(TARGET, ImageJacobi(), rule, k=4)
    state = decoder.start(torch.ones(rows // 8).long(), LENGTH, seed=seed, warp=Warp(guidance=2.0))
    gap, count = (torch.zeros(LENGTH, VOCAB, VOCAB, dtype=torch.float64) for _ in range(2))
    while not state.finished:
        before, root = state.emitted.clone(), state.root.clone()
        step = decoder.settle(state, decoder.speculate(state))
        state.sync()
        distribution = emitted_distributions(rule, step.draft, step.scores)
        for node in range(step.draft.nodes):
            row = (step.count > node).nonzero()[:, 0]
            place = (before + node)[row]
            left = root[row] if node == 0 else state.history[row, place - 1]
            unit = torch.nn.functional.one_hot(state.history[row, place], VOCAB)
            gap.index_put_((place, left), unit - distribution[row, node], accumulate=True)
            count.index_put_((place, left), distribution[row, node], accumulate=True)
    seen = (count > 5).all(-1)
    distance = (gap[seen].square() / count[seen]).sum()
    return float(chi2.sf(float(distance), int(seen.sum()) * (VOCAB - 1)))


def emitted_distributions(rule: Grouped, draft: Draft, scores: Scores) -> Tensor:
    """Of the unit that comes out of every node, its draft not seen yet: `[batch, node, vocab]` float64."""
    distribution = scores.distribution.probs.double()
    if draft.nodes == 1:
        return distribution
    p, q = distribution[:, :-1], dense(draft.distribution, draft.drafted, VOCAB).double()
    e = relax.excess(p, q, rule.groups(p), rule.options.size, rule.against)
    rest = rule.left(p, q, None)
    total = rest.sum(-1, keepdim=True)
    out = p + e - e.sum(-1, keepdim=True) * torch.where(total > 0, rest / total, p)
    return torch.cat([torch.where(draft.valid[:, 1:, None], out, p), distribution[:, -1:]], 1)


KILLED_BY: dict[str, Check] = {
    "refused-draft-takes-all-neighbours-with-it": refused_point_masses,
    "uniform-where-nothing-is-left": neighbours_that_are_all_there_is,
    "draft-distribution-without-its-neighbours-in-the-residual": refused_draws,
    "ranks-by-slices-that-wrap": groups_are_recounted,
    "mass-of-a-group-against-one-unit": bias_is_that_of_the_closed_form,
    "extra-acceptance-as-bias-of-groups": bias_is_that_of_the_closed_form,
    "altered-units-stay-in-the-window": units_follow_what_is_measured,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    check = KILLED_BY[mutant.name]
    before = without_the_bug(check, ROWS)
    assert before > LEVEL, f"{check.__name__} fails on the rules as they are"
    with mutant.apply():
        p = with_the_bug(check, ROWS)
    print(f"{mutant.name}: {check.__name__}, p = {before:.2g} → {p:.1e}")
    assert p < 1e-6, f"{mutant.name} survives {check.__name__}: p = {p:.2g}"


def test_every_mutant_has_its_check() -> None:
    assert [mutant.name for mutant in MUTANTS] == list(KILLED_BY)
