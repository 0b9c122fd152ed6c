"""Every published bug is seen, by name: a check that passes on the core as it is fails with the bug put back.

A check returns a p-value, or 1.0 and 0.0 (passed, failed) where equality or a count is promised.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from mmspec.core import philox
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, GaussianMixture
from mmspec.core.drafters.cascade import CascadeDrafter, FromHistory
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import LeftDistribution, RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.drafters.shapes import Beam, Branching
from mmspec.core.policies import Confidence
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import LEVEL, joint_p_value
from mmspec.testing.toys.degenerate import DegenerateDrafts
from mmspec.testing.toys.gaussian import GaussianTarget, RepeatLeft
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovTree
from mmspec_zoo.infill.any_order import Infill
from mmspec_zoo.infill.assd import Assd
from tests.support.cycle import Cycle
from tests.support.killed import Check, with_the_bug, without_the_bug
from tests.support.laws import assert_normal
from tests.support.mutants import MUTANTS
from tests.support.toys.any_order import AnyOrderTarget
from tests.support.toys.chain import ChainTarget, LinearHead
from tests.support.toys.mixture import MixtureTarget
from tests.support.toys.picture import PictureTarget, drawn, joint
from tests.support.white import white_p_value, whitened

PROMPT, ROWS = [0, 1], 60_000
LARGE = HistoryTarget.random(3, seed=3)
MIDDLE, SMALL = LARGE.near(4), LARGE.near(4).near(2)
TEXT = MarkovTarget.random(3, seed=4)
WORSE = (TEXT.table + MarkovTarget.random(3, seed=14).table) / 2


def decoded(target: Any, drafter: Any, rule: Any, rows: int, length: int, k: int, **options: Any) -> Tensor:
    """Units `[rows, length, …]`."""
    decoder = Decoder(target, drafter, rule, k=k, policy=options.pop("policy", None))
    state = decoder.start(options.pop("inputs", torch.tensor([PROMPT]).expand(rows, -1)), length, **options)
    while not state.finished:
        decoder.advance(state)
    return state.history[:, state.prompt_length : state.prompt_length + length]


def distribution_of_history(
    drafter: Any, rule: Any, rows: int, seed: int, length: int = 4, k: int = 3, **options: Any
) -> float:
    units = decoded(LARGE, drafter, rule, rows, length, k, seed=seed, **options)
    return joint_p_value(units, exact_joint(LARGE.next_distribution(PROMPT), length, 3))


def distribution_of_text(drafter: Any, rule: Any, rows: int, seed: int, length: int = 5, k: int = 2) -> float:
    def next_distribution(units: tuple[int, ...]) -> Tensor:
        before, at = [*PROMPT, *units][-2:]
        return torch.softmax(TEXT.table[before, at], -1)

    units = decoded(TEXT, drafter, rule, rows, length, k, seed=seed)
    return joint_p_value(units, exact_joint(next_distribution, length, 3))


def warped_chain_under_rejection(rows: int, seed: int) -> float:
    def top_two(logits: Tensor) -> Tensor:
        return (logits / 0.7).masked_fill(logits == logits.min(), -torch.inf)

    warp = Warp.sampling(temperature=0.7, top_k=2)
    units = decoded(LARGE, DraftModel(MIDDLE), Rejection(), rows, 4, 3, seed=seed, warp=warp)
    return joint_p_value(units, exact_joint(LARGE.next_distribution(PROMPT, top_two), 4, 3))


def chain_under_rejection(rows: int, seed: int) -> float:
    return distribution_of_history(DraftModel(MIDDLE), Rejection(), rows, seed)


def chain_under_block(rows: int, seed: int) -> float:
    return distribution_of_history(DraftModel(MIDDLE), Block(), rows, seed, length=5, k=4)


def speechless_chain_under_block(rows: int, seed: int) -> float:
    """A small vocabulary, 0 and 1, whose units are all forbidden after a 1."""
    table = WORSE.clone()
    table[..., 2], table[:, 1] = -torch.inf, -torch.inf
    return distribution_of_text(DraftModel(MarkovTarget(table)), Block(), rows, seed, k=3)


def empty_tree_under_recursive_rejection(rows: int, seed: int) -> float:
    return distribution_of_text(DegenerateDrafts(MarkovTree(WORSE, (2,)), ("empty",)), RecursiveRejection(), rows, seed)


def jacobi_under_rejection(rows: int, seed: int) -> float:
    return distribution_of_history(Jacobi(RandomUnit(3)), Rejection(), rows, seed, length=5, k=4)


def window_drawn_anew_under_rejection(rows: int, seed: int) -> float:
    """Distributions that depend strongly on the units before, so that a window has units to refuse."""
    target = PictureTarget.random(4, 4, seed=1, sharpness=2.5)
    decoder = Decoder(target, Jacobi(RandomUnit(4), independent=True), Rejection(), k=4)
    return joint_p_value(drawn(decoder, rows, 5, seed=seed, warp=Warp()), joint(target, 5, Warp()))


def window_under_match(rows: int, seed: int) -> float:
    return distribution_of_history(Jacobi(RandomUnit(3)), Match(), rows, seed, length=4, k=3)


def residuals_hold_only_what_q_left(rows: int, seed: int) -> float:
    """No mass where q has as much as p, and all that p has where q has none."""
    p, q = torch.tensor([[[0.5, 0.3, 0.2, 0.0]]]), torch.tensor([[[0.7, 0.3, 0.0, 0.0]]])
    left = Categorical(p).residual(Categorical(q))
    return float(torch.equal(left, torch.tensor([[[0.0, 0.0, 0.2, 0.0]]])))


def confident_chain_under_rejection(rows: int, seed: int) -> float:
    return distribution_of_history(DraftModel(MIDDLE), Rejection(), rows, seed, policy=Confidence(3, 0.3))


def cascade_of(small: HistoryTarget, rule: Any) -> CascadeDrafter:
    inner, middle = (FromHistory(model, lambda units, pads: (units, pads)) for model in (small, MIDDLE))
    return CascadeDrafter(Decoder(middle, DraftModel(inner), rule, k=2))


def cascade_under_rejection(rows: int, seed: int) -> float:
    """A poor innermost drafter: many refusals inside."""
    drafter = cascade_of(HistoryTarget.random(3, 99), Rejection())
    return distribution_of_history(drafter, Rejection(), rows, seed, length=5, k=4)


def cascade_under_block(rows: int, seed: int) -> float:
    return distribution_of_history(cascade_of(SMALL, Match()), Block(), rows, seed, length=5, k=4)


def blanks_under_rejection(rows: int, seed: int) -> float:
    """Four blanks, filled from right to left; the mask token would be likely."""
    some = AnyOrderTarget.random(6, 4, seed=0)
    some.base[:, 3] += 1.0
    target, text = AnyOrderTarget(some.base, some.pull, mask=3, repeats=rows), [0, None, None, None, None, 1]

    def next_distribution(units: tuple[int, ...]) -> Tensor:
        return target.probabilities(4 - len(units), {0: 0, 5: 1, **dict(zip((4, 3, 2, 1), units, strict=False))})

    inputs = Infill([text], [[4, 3, 2, 1]])
    units = decoded(target, Assd(), Rejection(), rows, 4, 3, seed=seed, inputs=inputs)
    return joint_p_value(units, exact_joint(next_distribution, 4, 4))


def siblings_without_replacement(rows: int, seed: int) -> float:
    return distribution_of_text(MarkovTree(WORSE, (2,)), RecursiveRejection(), rows, seed)


def tree_with_replacement(rows: int, seed: int) -> float:
    return distribution_of_text(MarkovTree(WORSE, (2, 1), "with"), RecursiveRejection(), rows, seed)


def tree_with_replacement_under_match(rows: int, seed: int) -> float:
    return distribution_of_text(MarkovTree(WORSE, (2, 1), "with"), Match(), rows, seed)


def tree_of_the_likeliest_under_match(rows: int, seed: int) -> float:
    return distribution_of_text(MarkovTree(WORSE, (2, 2), "top"), Match(), rows, seed)


def sampled_tree_of_a_model(rows: int, seed: int) -> float:
    drafter = DraftModel(MarkovTarget(WORSE), Branching((2,)))
    return distribution_of_text(drafter, RecursiveRejection(), rows, seed)


def sampled_beam_of_a_model(rows: int, seed: int) -> float:
    return distribution_of_text(DraftModel(MarkovTarget(WORSE), Beam(2)), RecursiveRejection(), rows, seed)


def gaussian_window_under_rejection(rows: int, seed: int) -> float:
    target = GaussianTarget.random(width=3, dim=1, seed=0)
    drafter = Jacobi(RepeatLeft(target.sigma))

    def sample(seed: int, rows: int) -> Tensor:
        return decoded(target, drafter, Rejection(), rows, 6, 5, seed=seed, inputs=rows).flatten(1)

    try:
        return assert_normal(sample, *target.joint(6), rows, seed)
    except AssertionError:
        return 0.0


def denoising_window_under_rejection(rows: int, seed: int) -> float:
    target = ChainTarget.random(3, LinearHead.of(1, steps=3), seed=0, gain=0.9)
    tokens = decoded(target, Jacobi(LeftDistribution()), Rejection(), rows // 20, 6, 4, seed=seed, inputs=rows // 20)
    return white_p_value(whitened(tokens.flatten(1), *target.joint(6)))


def mixture_window_under_rejection(rows: int, seed: int) -> float:
    """Scales alternate along the tokens: new slots are drafted with another one than the target's."""
    target = MixtureTarget.random(2, seed=0, coupling="maximal")
    tokens = decoded(target, Jacobi(LeftDistribution()), Rejection(), rows // 20, 4, 3, seed=seed, inputs=rows // 20)
    return white_p_value(target.normalised(tokens))


def residuals_of_almost_equal_mixtures(rows: int, seed: int) -> float:
    """Refusals are rare, and residual draws need many tries. Tokens lie far from zero."""
    mean = torch.full((rows, 1, 1, 1), 5.0)
    one = torch.ones(rows, 1, 1)
    p, q = GaussianMixture(one, mean, one, "maximal"), GaussianMixture(one, mean + 0.02, one, "maximal")
    noise = philox.PhiloxSource.seeded(seed, rows).fresh(torch.zeros(rows, dtype=torch.int64), 0, 1)
    y = p.couple(q, q.draw(noise), noise)[:, 0]
    return white_p_value(y.double() - 5) * float((y != 0).all())


def plain(length: int, **options: Any) -> Tensor:
    return decoded(LARGE, None, Match(), 64, length, 0, **options)


def tree_equals_plain(rows: int, seed: int) -> float:
    tree = decoded(LARGE, MarkovTree(WORSE, (2, 2, 1)), Match(), 64, 20, 3, seed=seed)
    return float(torch.equal(tree, plain(20, seed=seed)))


def ends_as_plain(rows: int, seed: int) -> float:
    drafted = decoded(LARGE, DraftModel(MIDDLE), Match(), 64, 20, 4, seed=seed, ends=2)
    return float(torch.equal(drafted, plain(20, seed=seed, ends=2)))


def penalty_as_plain(rows: int, seed: int) -> float:
    warp = Warp([RepetitionPenaltyLogitsProcessor(3.0)])
    tree = decoded(LARGE, MarkovTree(WORSE, (2, 2)), Match(), 64, 8, 2, seed=seed, warp=warp)
    return float(torch.equal(tree, plain(8, seed=seed, warp=warp)))


def row_equals_itself_in_another_batch(rows: int, seed: int) -> float:
    seeds = [seed + row for row in range(64)]
    there, back = plain(12, seed=seeds), plain(12, seed=seeds[::-1])
    return float(torch.equal(there, back.flip(0)))


def uniforms_are_inside(rows: int, seed: int) -> float:
    ends = philox.uniform_of(torch.tensor([0, 1, 2**31, 2**32 - 1]))
    return float(bool(((ends > 0) & (ends < 1)).all()))


def perfect_draft_emits_its_bonus(rows: int, seed: int) -> float:
    output = Decoder(LARGE, DraftModel(LARGE), k=3).generate(torch.tensor([PROMPT] * 8), 41, seed=seed)
    return float(output.report.acceptance_length == 4)


class Blind(DraftModel):
    """A draft model as on a device, where reading how far its cache lags behind would be a host sync."""

    @staticmethod
    def _longest(memory: Any, lag: Tensor) -> int:
        return memory.lag


def drafts_after_the_true_history(rows: int, seed: int) -> float:
    """The distribution of every draft, against a recomputation from the known units."""
    drafter, equal = Blind(MIDDLE), True
    decoder = Decoder(LARGE, drafter, Rejection(), k=3, policy=Cycle(3, 3, 0))
    state = decoder.start(torch.tensor([PROMPT] * 64), 30, seed=seed)
    while not state.finished:
        known, root, active = state.known - 1, state.root, ~state.done
        pending = decoder.speculate(state)
        draft = pending.draft
        if draft.nodes > 1:
            path = Draft.chain(draft.drafted).rooted(root, torch.full_like(known, 9))
            expected = MIDDLE.after(state.history, known, path)[:, :-1].softmax(-1)
            equal &= torch.allclose(draft.distribution.probs[active], expected[active], atol=1e-6)
        decoder.settle(state, pending)
        state.sync()
    return float(equal and not state.report.faults)


SEEN_TWICE: dict[str, Check] = {
    "draft-noise-once-per-call": sampled_beam_of_a_model,
    "siblings-resorted-by-q": sampled_tree_of_a_model,
    "without-replacement-reported-as-with": sampled_tree_of_a_model,
    "sibling-distribution-without-renormalising": sampled_beam_of_a_model,
    "unit-of-no-distribution-as-a-proposal": empty_tree_under_recursive_rejection,
}
"""A second check of some bugs: reused noise in a beam, distributions of a sampled tree, drafts without mass."""
KILLED_BY: dict[str, Check] = {
    "noise-by-position-under-block": chain_under_block,
    "noise-by-position-under-coupled-redraws": jacobi_under_rejection,
    "shared-noise-under-rejection": chain_under_rejection,
    "one-gumbel-row-for-redraw-and-residual": window_drawn_anew_under_rejection,
    "one-gumbel-row-while-warming-up": window_under_match,
    "filler-accepted-by-argmax": window_under_match,
    "draft-noise-once-per-call": tree_with_replacement,
    "positions-by-index-instead-of-depth": tree_equals_plain,
    "noise-by-place-in-the-batch": row_equals_itself_in_another_batch,
    "uniform-that-can-be-zero": uniforms_are_inside,
    "raw-q": warped_chain_under_rejection,
    "argmax-reported-as-softmax": chain_under_rejection,
    "unwarped-bonus": warped_chain_under_rejection,
    "history-of-the-root-at-every-node": penalty_as_plain,
    "trim-by-own-q": confident_chain_under_rejection,
    "unit-of-no-distribution-as-a-proposal": speechless_chain_under_block,
    "middle-resamples-from-its-own-distribution": cascade_under_rejection,
    "outer-noise-inside-under-block": cascade_under_block,
    "per-row-draws-on-a-shared-node": tree_of_the_likeliest_under_match,
    "equal-siblings-claim-twice": tree_with_replacement_under_match,
    "deepest-of-equal-siblings": tree_with_replacement,
    "siblings-resorted-by-q": siblings_without_replacement,
    "without-replacement-reported-as-with": siblings_without_replacement,
    "residual-without-renormalising": siblings_without_replacement,
    "sibling-distribution-without-renormalising": sampled_tree_of_a_model,
    "rerank-of-sampled-siblings": sampled_tree_of_a_model,
    "stale-q-after-partial-commit": jacobi_under_rejection,
    "batch-minimum-truncation-with-stale-q": jacobi_under_rejection,
    "independent-redraw-committed-at-first-mismatch": jacobi_under_rejection,
    "epsilon-in-the-residual": residuals_hold_only_what_q_left,
    "stale-mean-in-the-continuous-window": gaussian_window_under_rejection,
    "sigma-factor-in-the-acceptance": mixture_window_under_rejection,
    "inverse-sigma-factor-in-the-acceptance": mixture_window_under_rejection,
    "tempered-acceptance": denoising_window_under_rejection,
    "mean-drafted-as-a-draw": denoising_window_under_rejection,
    "stale-means-in-the-denoising-window": denoising_window_under_rejection,
    "residual-capped-at-zeros": residuals_of_almost_equal_mixtures,
    "distribution-of-the-slot-to-the-left": jacobi_under_rejection,
    "bonus-dropped-on-full-accept": perfect_draft_emits_its_bonus,
    "end-inside-the-accepted-path-ignored": ends_as_plain,
    "commit-one-short": tree_equals_plain,
    "path-not-gathered": tree_equals_plain,
    "target-position-by-index": tree_equals_plain,
    "observe-skipped-after-an-empty-round": drafts_after_the_true_history,
    "rejected-units-stay-in-the-draft-cache": drafts_after_the_true_history,
    "mask-token-without-renormalising": blanks_under_rejection,
}


LONG = {
    "mask-token-without-renormalising",
    "middle-resamples-from-its-own-distribution",
    "outer-noise-inside-under-block",
    "stale-mean-in-the-continuous-window",
}
"""Mutants whose checks take longest."""


@pytest.mark.filterwarnings("ignore:drafter Blind failed")
@pytest.mark.parametrize(
    ("name", "check"),
    [
        *(pytest.param(*each, marks=[pytest.mark.slow] * (each[0] in LONG)) for each in KILLED_BY.items()),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in SEEN_TWICE.items()),
    ],
)
def test_mutant_is_killed(name: str, check: Check) -> None:
    assert without_the_bug(check, ROWS) > LEVEL, f"{check.__name__} fails on the core as it is"
    with MUTANTS[name].apply():
        p = with_the_bug(check, ROWS)
    print(f"{name}: {check.__name__}, p = {p:.1e}")
    assert p < 1e-6, f"{name} survives {check.__name__}: p = {p:.2g}"


def test_every_mutant_has_its_check_and_a_source_that_readers_can_find() -> None:
    assert set(KILLED_BY) == set(MUTANTS)
    assert not [mutant.name for mutant in MUTANTS.values() if not mutant.source or ".md" in mutant.source]


def test_mutants_leave_nothing_behind() -> None:
    before = decoded(LARGE, DraftModel(MIDDLE), Rejection(), 64, 8, 3, seed=0)
    for mutant in MUTANTS.values():
        with mutant.apply():
            pass
    assert torch.equal(before, decoded(LARGE, DraftModel(MIDDLE), Rejection(), 64, 8, 3, seed=0))
