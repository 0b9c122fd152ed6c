"""Jacobi windows for pictures: exact joints of codes for every filling and redraw, and plain's own under shared noise.

The core's windows are proven in `tests/toys/test_grid.py`; here are the fillings of this plugin, the warps of pictures
(codes of probability 0 on either side), windows from one code to the whole picture, and rows of different lengths.
"""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Mixed
from mmspec.core.rules import Match, Rejection
from mmspec.core.warp import Warp
from mmspec.testing.statistics import assert_follows, joint_p_value
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from tests.support.toys.picture import KIND, PictureTarget, drawn, joint

VOCAB, LENGTH, END = 3, 5, 2
TARGET = PictureTarget.random(2, VOCAB, seed=3)
INITS = ("random", "left", "above", "predict-2d", "previous-image")
WARPS = {
    "guided": Warp(guidance=2.0),
    "guided top-k": Warp.sampling(top_k=2, guidance=2.0),
    "top-p": Warp.sampling(top_p=0.8),
    "guided top-p": Warp.sampling(temperature=1.2, top_p=0.85, guidance=1.5),
}


def jacobi(init, redraw, rule, k):
    """A decoder that has made a few pictures before, for drafters that look at them."""
    decoder = Decoder(TARGET, ImageJacobi(JacobiOptions(init=init, redraw=redraw)), rule, k=k)
    drawn(decoder, 777, 9, seed=99, warp=WARPS["guided"])
    return decoder


@pytest.mark.parametrize(
    ("init", "redraw", "k", "warp"),
    [
        ("random", "independent", 2, "guided top-k"),
        ("left", "independent", 6, "guided"),  # longer than the picture
        ("above", "independent", 1, "guided top-p"),
        # Each filling is redrawn in the other way below.
        pytest.param("predict-2d", "independent", 2, "guided top-k", marks=pytest.mark.slow),
        pytest.param("previous-image", "independent", 3, "guided", marks=pytest.mark.slow),
        ("predict-2d", "coupled", 3, "top-p"),
        ("previous-image", "coupled", 2, "guided top-k"),
    ],
)
def test_the_joint_is_kept(init, redraw, k, warp):
    """`sjd` draws windows anew, `mc-sjd` couples them; the picture before had other rows than this one."""
    decoder = jacobi(init, redraw, Rejection(), k)
    distribution = joint(TARGET, LENGTH, WARPS[warp])
    p = assert_follows(lambda seed, rows: drawn(decoder, rows, LENGTH, seed=seed, warp=WARPS[warp]), distribution)
    print(f"p = {p:.4f}")


def test_rows_that_end_at_different_places_keep_the_joint():
    """Rows stop at a code of their own choosing, so that they are at different places with windows of other widths."""
    decoder, warp = jacobi("above", "coupled", Rejection(), 3), WARPS["guided"]

    def sample(seed, rows):
        return drawn(decoder, rows, LENGTH, seed=seed, warp=warp, end=END)

    assert_follows(sample, joint(TARGET, LENGTH, warp, end=END))


def test_a_picture_does_not_follow_the_one_before_it():
    """The picture before is the draft of the same row, and the two are independent."""
    decoder, warp = jacobi("previous-image", "coupled", Rejection(), 2), WARPS["guided"]
    distribution = joint(TARGET, 3, warp)
    both = (distribution[..., None] * distribution.flatten()).reshape((VOCAB,) * 6)

    def pair(first):
        return torch.cat([drawn(decoder, 60_000, 3, seed=seed, warp=warp) for seed in (first, first + 1)], 1)

    assert max(joint_p_value(pair(first), both) for first in (1, 3)) > 1e-4


@pytest.mark.parametrize("init", INITS)
def test_shared_noise_gives_the_plain_codes(init):
    """`gs-sjd`, for every warp and window."""
    for (name, warp), k in zip(WARPS.items(), (1, 3, 6, 2), strict=True):
        fast = drawn(jacobi(init, "coupled", Match(), k), 300, 9, seed=5, warp=warp)
        plain = drawn(Decoder(TARGET), 300, 9, seed=5, warp=warp)
        assert torch.equal(fast, plain), (name, k)


def test_new_slots_hold_what_the_filling_says():
    """With a window of one, on rows whose last draft was used up."""
    before = drawn(Decoder(TARGET), 777, 9, seed=99, warp=WARPS["guided"])  # what `jacobi` makes under `match`
    for init in ("above", "predict-2d", "previous-image"):
        decoder = jacobi(init, "coupled", Match(), 1)
        state = decoder.start(torch.full((400,), KIND), 9, seed=3, warp=WARPS["guided"])
        for _ in range(3):
            decoder.advance(state)
        new, place = ~state.memory.drawn[:, 0], state.emitted
        left, above, corner = (state.history.gather(1, (place - ago)[:, None])[:, 0] for ago in (1, 2, 3))
        expected = {
            "above": above,
            "predict-2d": torch.where(corner == above, left, above),
            "previous-image": before[:400].gather(1, place[:, None])[:, 0],
        }[init]
        assert 40 < new.sum() < 360
        assert torch.equal(decoder.speculate(state).draft.drafted[:, 0][new], expected[new]), init
        assert not torch.equal(expected[new], left[new])


def test_drafts_of_probability_zero_are_seen_on_both_sides():
    """What the joints above rest on: codes that the target cannot say are drafted, and codes that no draft says."""
    decoder = jacobi("left", "coupled", Rejection(), 3)
    state = decoder.start(torch.full((300,), KIND), 9, seed=1, warp=WARPS["guided top-k"])
    impossible = missing = 0
    while not state.finished:
        pending = decoder.speculate(state)
        draft, distribution = pending.draft, pending.scores.distribution
        if draft.nodes > 1 and isinstance(draft.distribution, Mixed):
            p, valid = distribution.probs[:, :-1], draft.valid[:, 1:] & ~state.done[:, None]
            impossible += int(((p.gather(-1, draft.drafted[..., None])[..., 0] == 0) & valid).sum())
            random = (valid & draft.distribution.random)[..., None]
            missing += int(((draft.distribution.distribution.probs == 0) & (p > 0) & random).sum())
        decoder.settle(state, pending)
        state.sync()
    assert impossible > 20 and missing > 20, (impossible, missing)
