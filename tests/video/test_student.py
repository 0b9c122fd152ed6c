"""`student`: tolerance 0 is plain, no tolerance is the student alone, and between them the teacher's look decides."""

import itertools

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.noise import Substream
from mmspec_video.deviation import distance
from mmspec_video.drafters.action_model import ActionModel, ActionModelOptions
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import student_of
from mmspec_video.rules.student import Student, StudentOptions
from mmspec_video.targets.checked import CheckedDenoiser
from mmspec_video.targets.frames import FramesTarget
from mmspec_video.training.student import adaptable, adapter_of

TRACE = [1, 1, 2, 2, 0, 3]
RAGGED = [TRACE, [1] * 6, [1, 2, 1, 2, 1, 2]]
LEVEL = 0.5
ALL = 1e9


def close(a, b, tolerance=5e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def adapter(dit):
    torch.manual_seed(3)
    adapted = adaptable(dit, 4)
    for name, weights in adapted.named_parameters():
        if name.endswith(".up"):
            weights.data.copy_(torch.randn_like(weights) * 0.05)
    return adapter_of(adapted, steps=2)


@pytest.fixture(scope="module")
def rule(adapter):
    return lambda tolerance, level=LEVEL: Student(StudentOptions(tolerance, level, adapter))


def by_hand(dit, student, clip, trace, asked, tolerance, seed=7):
    """Frames `[length, …]`, who made each, and all gaps, without a cache: the whole window in every pass."""
    frames, actions = list(clip[0]), list(clip[1])
    ask, given, stands, gaps = asked(dit, seed), len(clip[0]), [], []

    def made(model):
        x = model.sampler.begin(ask.noise(len(frames)))
        for step in range(model.sampler.steps):
            out = ask.says(
                model, [*frames[first:], x], actions[first:], [model.sampler.time(step)], len(frames) - first
            )
            noise = ask.noise(len(frames), step + 1) if model.sampler.noisy else None
            x = model.sampler.advance(x, out[0], step, noise)
        return x

    for action in trace:
        actions.append(action)
        first = max(0, len(frames) + 1 - dit.window)
        drafted = made(student)
        mixed = torch.lerp(drafted, ask.noise(len(frames), 0, Substream.COIN), LEVEL)
        said = ask.says(dit, [*frames[first:], mixed], actions[first:], [LEVEL], len(frames) - first)[0]
        gaps.append(float(distance((mixed - LEVEL * said)[None], drafted[None])))
        stands.append(gaps[-1] < tolerance)
        frames.append(drafted if stands[-1] else made(dit))
    return torch.stack(frames[given:]), stands, gaps


def between(gaps):
    """A tolerance in the middle of the widest space between two gaps, so that rounding decides nothing."""
    ordered = sorted(gaps)
    low, high = max(itertools.pairwise(ordered), key=lambda pair: pair[1] - pair[0])
    return (low + high) / 2


@pytest.mark.parametrize("cache", ["exact", "streaming", "none"])
def test_no_tolerance_is_plain_bit_for_bit(dit, rule, shown, cache):
    plain, _ = shown(dit, RAGGED, cache=cache)
    made, play = shown(dit, RAGGED, rule(0.0), cache=cache)
    assert torch.equal(made, plain)
    assert play.report.deviation.altered == 0 and play.report.deviation.frames == made.shape[0] * made.shape[1]
    guessed, play = shown(dit, [TRACE], rule(0.0), ActionModel(), k=2, cache=cache, thinks=True)
    assert torch.equal(guessed, shown(dit, [TRACE], cache=cache)[0]) and play.report.accepted > 0


@pytest.mark.parametrize("cache", ["exact", "streaming", "none"])
def test_any_tolerance_is_the_student_alone(dit, adapter, rule, shown, cache):
    alone, _ = shown(adapter.student(dit), [TRACE], cache=cache)
    made, play = shown(dit, [TRACE], rule(ALL), cache=cache)
    close(made, alone)
    assert play.report.deviation.altered == play.report.deviation.measured == len(TRACE)
    assert (made - shown(dit, [TRACE], cache=cache)[0]).abs().max() > 1e-2


def test_between_them_the_teacher_decides_frame_by_frame(dit, adapter, rule, shown, asked, first_frames):
    student = adapter.student(dit)
    tolerance = between(by_hand(dit, student, first_frames, TRACE, asked, ALL)[2])
    expected, stands, gaps = by_hand(dit, student, first_frames, TRACE, asked, tolerance)
    assert 0 < sum(stands) < len(TRACE)
    made, play = shown(dit, [TRACE], rule(tolerance))
    close(made[0], expected)
    kept, deviation = [gap for gap, own in zip(gaps, stands, strict=True) if own], play.report.deviation
    assert deviation.altered == deviation.measured == len(kept) and deviation.frames == len(TRACE)
    assert deviation.mean == pytest.approx(sum(kept) / len(kept), rel=1e-3)
    assert deviation.largest == pytest.approx(max(kept), rel=1e-3) and deviation.largest < tolerance
    said = str(play.report)
    assert (
        "(lossy)" in said
        and f"{len(kept)} of {len(TRACE)} frames are the student's, the teacher sees a gap of " in said
    )


@pytest.mark.parametrize("cache", ["exact", "streaming", "none"])
def test_rows_that_are_refused_at_other_times_are_what_they_are_alone(dit, adapter, rule, shown, cache):
    gaps = []
    keep = CheckedDenoiser.frame

    def spied(self, *call):
        made = keep(self, *call)
        gaps.append(made[2])
        return made

    CheckedDenoiser.frame = spied
    try:
        shown(dit, RAGGED, rule(ALL), cache=cache)
    finally:
        CheckedDenoiser.frame = keep
    tolerance = between(torch.cat(gaps).tolist())
    together, play = shown(dit, RAGGED, rule(tolerance), cache=cache)
    alone = [shown(dit, [trace], rule(tolerance), cache=cache, seed=7 + row) for row, trace in enumerate(RAGGED)]
    close(together, torch.cat([frames for frames, _ in alone]))
    assert play.report.deviation.altered == sum(one.report.deviation.altered for _, one in alone)
    assert 0 < play.report.deviation.altered < play.report.deviation.frames


def test_a_frame_does_not_depend_on_when_it_was_made(dit, rule, shown):
    made, _ = shown(dit, [TRACE], rule(ALL))
    drafter = ActionModel(ActionModelOptions(branches=3))
    ahead, play = shown(dit, [TRACE], rule(ALL), drafter, k=2, thinks=True)
    close(ahead, made)
    assert play.report.accepted > 0 and play.discarded > 0


class TeachersKeys:
    """The mutant: the student reads earlier frames through its teacher's keys."""

    def _split(self, window):
        taught, learned = self.right(window)
        return taught, taught if learned.keys is not None else learned


def test_a_student_with_its_teachers_keys_is_seen(dit, adapter, rule, shown, monkeypatch):
    alone, _ = shown(adapter.student(dit), [TRACE])
    monkeypatch.setattr(CheckedDenoiser, "right", CheckedDenoiser._split, raising=False)
    monkeypatch.setattr(CheckedDenoiser, "_split", TeachersKeys._split)
    made, _ = shown(dit, [TRACE], rule(ALL))
    assert (made - alone).abs().max() > 1e-2


def test_other_decoders_of_a_target_stay_exact_and_the_student_is_made_once(dit, rule):
    target, own = FramesTarget(dit), rule(0.1)
    first, again = Decoder(target, None, own), Decoder(target, None, own)
    assert target.check is None and Decoder(target).target is target
    assert first.target.check.student is again.target.check.student


def test_it_is_found_beside_its_teacher(dit, adapter, shown, tmp_path):
    dit.save_pretrained(tmp_path / "transformer")
    adapter.save_pretrained(tmp_path / "student")
    teacher = NextFrameDiT.from_pretrained(tmp_path / "transformer", low_cpu_mem_usage=False).eval()
    decoder = decoder_for(teacher, "student", options={"tolerance": ALL})
    assert decoder.rule.exactness == "lossy" and decoder_for(teacher).rule.exactness == "invariant"
    expected, _ = shown(adapter.student(dit), [TRACE])
    close(shown(teacher, [TRACE], decoder.rule)[0], expected)
    by_folder = Student(StudentOptions(ALL, student=str(tmp_path / "student")))
    close(shown(dit, [TRACE], by_folder)[0], expected)
    (tmp_path / "student" / "diffusion_pytorch_model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"the weights of .*student. are damaged or truncated"):
        decoder_for(teacher, "student")


def test_a_student_of_half_a_file_is_refused(dit, adapter, tmp_path):
    adapter.save_pretrained(tmp_path / "student")
    file = tmp_path / "student" / "diffusion_pytorch_model.safetensors"
    whole = load_file(file)
    save_file({key: whole[key] for key in sorted(whole)[::2]}, file)
    with pytest.raises(ValueError, match=r"do not fit their StudentAdapter: .* keys missing"):
        student_of(dit, tmp_path / "student")


def test_what_is_no_student_is_refused(dit, oasis, tokens, adapter):
    torch.manual_seed(0)
    sizes = dict(patch=2, depth=1, heads=2)
    learned = dict(objective="consistency", steps=2)
    other = NextFrameDiT(2, 4, 4, 4, dim=64, frames=5, **sizes, **learned)
    longer = NextFrameDiT(2, 4, 4, 4, dim=32, frames=9, **sizes, **learned)
    student = adapter.student(dit)
    refusals = [
        (dit, {}, "has no student beside it: make one with `mmspec train student`"),
        (oasis, {}, r"this model is of another kind \(OasisDiT\); use 'branch-prediction'"),
        (student, {}, "this model is a student itself"),
        (other, {"student": adapter}, "this model is a student itself"),
        (NextFrameDiT(2, 4, 4, 4, dim=64, frames=5, **sizes), {"student": adapter}, "was learned from another teacher"),
        (dit, {"student": longer}, "does not fit its teacher: frames 9 and 5"),
        (dit, {"student": dit}, "trained for 'consistency', and this model for 'flow'"),
        (dit, {"student": "no-such-folder"}, "there is no student in no-such-folder; `mmspec train"),
        (dit, {"student": adapter, "tolerance": -0.1}, "tolerance.*greater than or equal to 0"),
        (dit, {"student": adapter, "tolerance": float("nan")}, "tolerance"),
        (dit, {"student": adapter, "level": 0}, "level.*greater than 0"),
        (tokens, {}, r"'student' does not fit target 'token-frames'.* needs .*external"),
    ]
    for model, options, message in refusals:
        with pytest.raises(ValueError, match=message):
            decoder_for(model, "student", options=options)
    with pytest.raises(TypeError, match="a student is a StudentAdapter, a NextFrameDiT or a folder, not int"):
        decoder_for(dit, "student", options={"student": 3})
