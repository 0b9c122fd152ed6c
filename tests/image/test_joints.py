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
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from tests.support.laws import assert_follows
from tests.support.toys.picture import KIND, PictureTarget, drawn, joint

VOCAB, LENGTH, END = 3, 5, 2
TARGET = PictureTarget.random(2, VOCAB, seed=3)
INITS = ("random", "left", "above")
WARPS = {
    "guided": Warp(guidance=2.0),
    "guided top-k": Warp.sampling(top_k=2, guidance=2.0),
    "top-p": Warp.sampling(top_p=0.8),
    "guided top-p": Warp.sampling(temperature=1.2, top_p=0.85, guidance=1.5),
}


def jacobi(init, redraw, rule, k):
    return Decoder(TARGET, ImageJacobi(JacobiOptions(init=init, redraw=redraw)), rule, k=k)


@pytest.mark.parametrize(
    ("init", "redraw", "k", "warp"),
    [
        ("random", "independent", 2, "guided top-k"),
        ("left", "independent", 6, "guided"),  # longer than the picture
        ("above", "independent", 1, "guided top-p"),
        ("left", "coupled", 3, "top-p"),
        ("above", "coupled", 2, "guided top-k"),
    ],
)
def test_the_joint_is_kept(init, redraw, k, warp):
    """`sjd` draws windows anew, `mc-sjd` couples them."""
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


@pytest.mark.parametrize("init", INITS)
def test_shared_noise_gives_the_plain_codes(init):
    """`gs-sjd`, for every warp and window."""
    for (name, warp), k in zip(WARPS.items(), (1, 3, 6, 2), strict=True):
        fast = drawn(jacobi(init, "coupled", Match(), k), 300, 9, seed=5, warp=warp)
        plain = drawn(Decoder(TARGET), 300, 9, seed=5, warp=warp)
        assert torch.equal(fast, plain), (name, k)


def test_new_slots_hold_the_code_above():
    """With a window of one, on rows whose last draft was used up."""
    decoder = jacobi("above", "coupled", Match(), 1)
    state = decoder.start(torch.full((400,), KIND), 9, seed=3, warp=WARPS["guided"])
    for _ in range(3):
        decoder.advance(state)
    new = ~state.memory.drawn[:, 0]
    left, above = (state.history.gather(1, (state.emitted - ago)[:, None])[:, 0] for ago in (1, 2))
    assert 40 < new.sum() < 360
    assert torch.equal(decoder.speculate(state).draft.drafted[:, 0][new], above[new])
    assert not torch.equal(above[new], left[new])


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
