"""Token frames: passes score what teacher forcing says; Jacobi windows make the plain frames for a seed, sooner."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec_video.drafters.frame_jacobi import FrameJacobi, FrameJacobiOptions
from mmspec_video.playing.tokens import TokenPlay
from mmspec_video.targets.token_frames import TokenFramesTarget, TokenPrompt

CODES, ACTIONS, CELLS, FRAMES = 10, 4, 12, 5
PERIOD = CELLS + 1
INITS = ("previous-frame", "above", "left", "random")


def clip(rows, given=2):
    g = torch.Generator().manual_seed(3)
    return torch.randint(CODES, (rows, given, CELLS), generator=g), torch.randint(
        ACTIONS, (rows, given - 1), generator=g
    )


def played(model, drafter=None, length=7, rows=2, k=6, late=False, warp=None, actions=None, seed=5):
    """Frames `[row, length, cell]`, and the play; `late`: an action is told once the frame before it is seen."""
    frames, before = clip(rows)
    trace = torch.arange(length).repeat(rows, 1) // 2 % ACTIONS if actions is None else actions
    play = TokenPlay(Decoder(TokenFramesTarget(model), drafter, k=k), frames, before, length, seed, warp)
    if not late:
        play.act(trace)
    made = []
    for i in range(length):
        if late:
            play.act(trace[:, i : i + 1])
        made.append(play.frame())
    return torch.stack(made, 1), play


@pytest.mark.parametrize("tree", [False, True])
def test_a_pass_scores_what_teacher_forcing_says(tokens, tree):
    target = TokenFramesTarget(tokens)
    frames, actions = clip(3, 4)
    whole = target.units(TokenPrompt(frames, torch.cat([actions, actions[:, :1]], 1)))
    with torch.no_grad():
        wanted = tokens(whole)
    given = TokenPrompt(frames[:, :2], actions[:, :2])
    start = 2 * PERIOD
    started = target.start(given, 2 * PERIOD - 1, 6)
    assert torch.equal(started.prompt, whole[:, :start])
    torch.testing.assert_close(started.output.logits[:, 0, :CODES], wanted[:, start - 1], rtol=1e-4, atol=1e-4)
    parents = [-1, 0, -1, 2, 3] if tree else [-1, 0, 1, 2, 3]
    after = whole[:, start + 1 :]
    other = (after[:, :2] + 1) % CODES
    drafted = torch.cat([other, after[:, :3]], 1) if tree else after[:, :5]
    output = target.verify(started.cache, Draft.tree(drafted, parents).rooted(whole[:, start], torch.full((3,), 9)))
    assert (output.logits[..., CODES:] == -torch.inf).all()
    path = [0, 3, 4, 5] if tree else [0, 1, 2, 3]
    for node, place in zip(path, range(start, start + 4), strict=True):
        torch.testing.assert_close(output.logits[:, node, :CODES], wanted[:, place], rtol=1e-4, atol=1e-4)
    count = torch.tensor([4, 2, 3])
    target.commit(started.cache, torch.tensor(path[1:]).expand(3, -1), count)
    root = whole.gather(1, (start + count)[:, None])[:, 0]
    output = target.verify(started.cache, Draft.alone(root))
    expected = wanted.gather(1, (start + count)[:, None, None].expand(-1, 1, CODES))
    torch.testing.assert_close(output.logits[..., :CODES], expected, rtol=1e-4, atol=1e-4)


def test_an_action_changes_what_comes_after_it(tokens):
    units = TokenFramesTarget(tokens).units(TokenPrompt(*clip(1, 3)[:1], torch.zeros(1, 3, dtype=torch.int64)))
    other = units.clone()
    other[:, 2 * PERIOD - 1] = CODES + 1
    with torch.no_grad():
        apart = (tokens(units) - tokens(other)).abs().amax((0, 2))
    assert apart[: 2 * PERIOD - 1].max() == 0 and (apart[2 * PERIOD - 1 :] > 1e-3).all()


def test_plain_frames_are_those_of_a_loop_by_hand(tokens):
    """Teacher forcing, unit by unit, with the noise of the unit's number; and a new sequence where the old one ends."""
    from mmspec.core.philox import PhiloxNoise, PhiloxSource

    made, play = played(tokens, rows=1, length=7)
    frames, actions = clip(1)
    frames, actions = list(frames[0].unbind(0)), torch.cat([actions[0], torch.arange(7) // 2 % ACTIONS]).tolist()
    key, first = PhiloxSource.seeded(5, 1).key, 0
    for number in range(7):
        if len(frames) - first == FRAMES:
            first = len(frames) - FRAMES // 2
        parts = [torch.cat([frames[f], torch.tensor([CODES + actions[f]])]) for f in range(first, len(frames))]
        units = torch.cat(parts)
        for cell in range(CELLS):
            with torch.no_grad():
                p = tokens(units[None])[0, -1].softmax(-1)
            at = torch.tensor([[number * PERIOD + cell]])
            race = PhiloxNoise(key, at, torch.zeros(1, 1, dtype=torch.int64)).exponential(CODES + ACTIONS)[0, 0, :CODES]
            units = torch.cat([units, (p / race).argmax()[None]])
        frames.append(units[-CELLS:])
    assert torch.equal(made[0], torch.stack(frames[2:]))
    assert torch.equal(play.frames[0], torch.stack(frames))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("init", INITS)
@pytest.mark.compiled("no pass")
def test_same_seed_same_frames(tokens, init, late):
    plain, before = played(tokens)
    for k in (1, 5, 30):
        made, play = played(tokens, FrameJacobi(FrameJacobiOptions(init)), k=k, late=late)
        assert torch.equal(made, plain)
    assert play.report.rounds < before.report.rounds


def test_temperature_and_greedy(tokens):
    for warp in (Warp.sampling(temperature=0.7, top_k=4), Warp.sampling(temperature=0)):
        plain, _ = played(tokens, warp=warp)
        assert torch.equal(played(tokens, FrameJacobi(), warp=warp, late=True)[0], plain)


def test_a_row_does_not_depend_on_its_batch(tokens):
    frames, before = clip(3)
    trace = torch.tensor([[1, 1, 2, 3], [0, 1, 0, 1], [3, 3, 3, 3]])
    for late in (False, True):
        made, _ = played(tokens, FrameJacobi(), 4, 3, late=late, actions=trace, seed=[5, 6, 7])
        for row in range(3):
            decoder = Decoder(TokenFramesTarget(tokens))
            play = TokenPlay(decoder, frames[row : row + 1], before[row : row + 1], 4, [5 + row])
            play.act(trace[row : row + 1])
            assert torch.equal(torch.cat([play.frame() for _ in range(4)]), made[row])


def test_the_frame_before_is_a_good_draft_of_the_same_frame(tokens):
    """Copies are taken from the prompt as well, place by place."""
    frames, _ = clip(1)
    target = TokenFramesTarget(tokens)
    decoder = Decoder(target, FrameJacobi(), Match(), k=CELLS)
    state = decoder.start(TokenPrompt(frames, torch.tensor([[0, 0]])), 2 * PERIOD - 1)
    draft = decoder.speculate(state).draft
    copies = torch.cat([frames[0, 1, 1:], torch.tensor([CODES])])  # the action behind the frame, too
    assert torch.equal(draft.drafted[0], copies)


def test_windows_run_across_actions_that_are_known(tokens):
    frames, before = clip(1)
    seen = {}
    for late in (False, True):
        decoder = Decoder(TokenFramesTarget(tokens), FrameJacobi(), k=20)
        play = TokenPlay(decoder, frames, before, 3, 0)
        play.act(torch.zeros(1, 1 if late else 3, dtype=torch.int64))
        play.frame()
        seen[late] = play._state.host.emitted[0]
    assert seen[True] == CELLS and seen[False] > CELLS


def test_bad_input(tokens):
    target, (frames, before) = TokenFramesTarget(tokens), clip(1)
    with pytest.raises(ValueError, match="sees 5 frames at once: 2 given ones and 39 new units"):
        target.start(TokenPrompt(frames, torch.zeros(1, 2, dtype=torch.int64)), 39, 1)
    with pytest.raises(ValueError, match="begins with 1 to 4 frames, not 5"):
        TokenPlay(Decoder(target), clip(1, 5)[0], clip(1, 5)[1], 1, 0)
    play = TokenPlay(Decoder(target), frames, before, 1, 0)
    with pytest.raises(ValueError, match="frame 0 has no action yet"):
        play.frame()
    play.act(torch.zeros(1, 2, dtype=torch.int64))
    play.frame()
    with pytest.raises(ValueError, match="no frame is left"):
        play.frame()
    with pytest.raises(ValueError, match="needs a target of frames"):
        FrameJacobi().bind(type("Other", (), {"vocab": 3})())
