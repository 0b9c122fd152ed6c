"""`nfd`: frames of several actions made together, as defined; alone they are plain's; wrong guesses leave no trace."""

from dataclasses import replace

import pytest
import torch

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec_video.deviation import distance
from mmspec_video.drafters.action_repeat import ActionRepeat
from mmspec_video.rules.nfd import Nfd, NfdOptions
from mmspec_video.targets import joint
from mmspec_video.targets.frames import FramesTarget
from mmspec_video.training.student import adaptable, adapter_of

TRACE = [1, 1, 2, 2, 2, 2, 0]
RAGGED = [TRACE, [1] * 7, [1, 2, 1, 2, 1, 2, 1]]


class Wrong(ActionRepeat):
    """Always guesses an action that is never taken."""

    def propose(self, state, k, noise):
        draft = super().propose(state, k, noise)
        return replace(draft, units=torch.full_like(draft.units, 3))


def close(a, b, tolerance=2e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cache", ["exact", "streaming", "none"])
def test_one_frame_at_a_time_is_plain_bit_for_bit(dit, shown, cache):
    plain, _ = shown(dit, [TRACE], cache=cache)
    alone, play = shown(dit, [TRACE], Nfd(), ActionRepeat(), k=0, cache=cache)
    assert torch.equal(alone, plain)
    assert (play.report.deviation.altered, play.report.deviation.frames) == (0, len(TRACE))


def test_frames_made_together_are_those_of_the_definition(dit, shown, asked, first_frames):
    """Every step: one pass over all frames, each new one as noisy as the others, and nobody sees later ones."""
    (frames, actions), trace = map(list, first_frames), [1, 2, 2, 0, 1, 1]
    by_hand, sampler, given = asked(dit, seed=7), dit.sampler, len(frames)
    for block in (trace[:3], trace[3:]):
        actions += block
        first = max(0, len(frames) + 1 - dit.window)  # what the first of them sees
        there = len(frames) - first
        apart = torch.arange(there + 3)[:, None] - torch.arange(there + 3)
        seen = ((apart >= 0) & (apart < dit.window))[None]
        x = torch.stack([sampler.begin(by_hand.noise(len(frames) + i)) for i in range(3)])
        for step in range(sampler.steps):
            times = [sampler.time(step)] * 3
            out = by_hand.says(dit, [*frames[first:], *x], actions[first:], times, there, seen)
            x = sampler.advance(x, out, step, None)
        frames += list(x)
    made, play = shown(dit, [trace], Nfd(), ActionRepeat(), k=2, given=True)
    close(made[0], torch.stack(frames[given:]))
    plain, _ = shown(dit, [trace])
    close(made[:, 0], plain[:, 0])
    assert (made - plain)[:, 1:].abs().amax((0, 2, 3, 4)).min() > 1e-2  # another sampler, and said so
    assert play.discarded == 0 and play.report.exactness == "lossy"


def test_published_models_are_made_together_too(oasis, shown):
    plain, _ = shown(oasis, [TRACE])
    made, _ = shown(oasis, [TRACE], Nfd(), ActionRepeat(), k=2, given=True)
    close(made[:, 0], plain[:, 0], 1e-4)
    assert (made - plain)[:, 1].abs().max() > 1e-3
    close(shown(oasis, [TRACE], Nfd(), Wrong(), k=2)[0], plain, 1e-4)


@pytest.mark.parametrize("cache", ["exact", "streaming", "none"])
def test_behind_wrong_guesses_every_frame_is_plain(dit, shown, cache):
    """The first of the frames that are made together sees none of the others, and these leave nothing behind."""
    plain, _ = shown(dit, [TRACE], cache=cache)
    made, play = shown(dit, [TRACE], Nfd(), Wrong(), k=2, cache=cache)
    close(made, plain)
    assert play.discarded == 2 * len(TRACE) - 3  # the last two times less is left to guess


def test_right_guesses_are_kept_and_a_wrong_one_begins_anew(dit, shown):
    made, play = shown(dit, [TRACE], Nfd(), ActionRepeat(), k=2)
    deviation = play.report.deviation
    # 1 1 (1): one is thrown away; 2 2 2; 2 (0 was guessed as 2); 0.
    assert deviation.frames == 3 + 3 + 2 + 1 and deviation.altered == 2 + 2 + 1
    assert play.discarded == 2 and play.report.accepted == 1 + 2
    other, _ = shown(dit, [[*TRACE[:-1], 3]], Nfd(), ActionRepeat(), k=2)
    assert torch.equal(made[:, :-1], other[:, :-1]) and not torch.equal(made[:, -1], other[:, -1])


def test_frames_do_not_depend_on_how_long_a_player_thinks(dit, shown):
    quick, _ = shown(dit, [TRACE], Nfd(), ActionRepeat(), k=2)
    slow, play = shown(dit, [TRACE], Nfd(), ActionRepeat(), k=2, thinks=True)
    assert torch.equal(quick, slow) and play.discarded == 2


@pytest.mark.parametrize("cache", ["exact", "streaming"])
def test_rows_whose_guesses_fail_at_other_times_are_what_they_are_alone(dit, shown, cache):
    together, play = shown(dit, RAGGED, Nfd(), ActionRepeat(), k=2, cache=cache)
    alone = [
        shown(dit, [trace], Nfd(), ActionRepeat(), k=2, cache=cache, seed=7 + row) for row, trace in enumerate(RAGGED)
    ]
    close(together, torch.cat([frames for frames, _ in alone]))
    for count in ("frames", "altered"):
        own = sum(getattr(one.report.deviation, count) for _, one in alone)
        assert getattr(play.report.deviation, count) == own


def test_the_report_has_the_distance_from_plain_behind_the_same_frames(dit, shown):
    plain, _ = shown(dit, [[1, 2]])
    made, play = shown(dit, [[1, 2]], Nfd(NfdOptions(measure=True)), ActionRepeat(), k=1, given=True)
    deviation, off = play.report.deviation, float(distance(made[:, 1], plain[:, 1]))
    assert deviation.measured == 1 and deviation.mean == pytest.approx(off, rel=1e-3) and off > 1e-2
    assert f"1 of 2 frames denoised together with the one before, off by {deviation.mean:.4f}" in str(play.report)
    assert play.report.deviation.largest == deviation.mean
    again, unmeasured = shown(dit, [[1, 2]], Nfd(), ActionRepeat(), k=1, given=True)
    assert torch.equal(made, again)
    assert unmeasured.report.deviation.mean is None and "not measured" in str(unmeasured.report)


def test_whoever_sees_later_frames_is_seen(dit, shown, monkeypatch):
    """The mutant: frames in the making without the causal mask. Then even the first one depends on guesses."""
    plain, _ = shown(dit, [TRACE])
    seen = joint._seen
    monkeypatch.setattr(joint, "_seen", lambda *block: torch.ones_like(seen(*block)))
    made, _ = shown(dit, [TRACE], Nfd(), Wrong(), k=2)
    assert (made - plain)[:, 0].abs().max() > 1e-2


def test_other_decoders_of_a_target_stay_exact(dit):
    target = FramesTarget(dit)
    decoder = Decoder(target, ActionRepeat(), Nfd(), k=2)
    assert decoder.target.joint is not None and target.joint is None
    assert Decoder(target, ActionRepeat(), k=2).target is target


def test_it_comes_by_name_and_refuses_what_does_not_fit(dit, oasis, tokens):
    for model in (dit, oasis):
        decoder = decoder_for(model, "nfd", k=3)
        assert decoder.rule.exactness == "lossy" and decoder.k == 3 and decoder.target.joint is not None
        assert decoder_for(model).rule.exactness == "invariant"  # never a default
    with pytest.raises(ValueError, match=r"nfd.* does not fit target 'token-frames'.* needs .*external"):
        decoder_for(tokens, "nfd")
    with pytest.raises(ValueError, match=r"rule 'nfd' needs chain"):
        decoder_for(dit, "nfd", drafter="action-model")


def test_a_million_guesses_are_as_many_as_there_are_frames(dit, shown):
    """One decoder a depth is made ahead, and no depth goes beyond the last frame."""
    made, play = shown(dit, [TRACE[:3]], drafter=ActionRepeat(), k=10**6, thinks=True)
    plain, _ = shown(dit, [TRACE[:3]])
    assert list(play._depths) == [1, 2, 3]
    close(made, plain)


@pytest.mark.parametrize("cache", ["exact", "none"])
def test_a_student_denoises_in_its_place(dit, shown, cache):
    """NFD+: one frame at a time it is the student alone, several are those that the rule has on the student itself."""
    torch.manual_seed(3)
    adapted = adaptable(dit, 4)
    for name, weights in adapted.named_parameters():
        if name.endswith(".up"):
            weights.data.copy_(torch.randn_like(weights) * 0.05)
    adapter = adapter_of(adapted, steps=1)
    student, rule = adapter.student(dit), Nfd(NfdOptions(student=adapter))
    assert torch.equal(
        shown(dit, [TRACE], rule, ActionRepeat(), 0, cache=cache)[0], shown(student, [TRACE], cache=cache)[0]
    )
    for k in (1, 2):
        ours, play = shown(dit, [TRACE], rule, ActionRepeat(), k, given=True, cache=cache)
        theirs, other = shown(student, [TRACE], Nfd(), ActionRepeat(), k, given=True, cache=cache)
        assert torch.equal(ours, theirs) and play.report.deviation.altered == other.report.deviation.altered > 0
    assert not torch.equal(ours, shown(dit, [TRACE], Nfd(), ActionRepeat(), 2, given=True, cache=cache)[0])
    with pytest.raises(ValueError, match="this model has no student beside it"):
        Nfd(NfdOptions(student=True)).wrap(FramesTarget(dit))
