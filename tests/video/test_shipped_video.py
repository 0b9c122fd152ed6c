"""The worlds that we ship: the same frames as plain decoding, in less time; frames that follow the actions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mmspec
from mmspec import shipped
from mmspec_video.recorded import CLIPS, DENOISED, STUDENT, TOKENS, TOUR_CLIP, RecordedClips, recorded
from tools.bench.video.looks import moved, psnr, turned_as_told
from tools.train.video.tokens import next_code, sequence

GIVEN, NEW = 4, 8


@pytest.fixture(scope="module")
def clips() -> RecordedClips:
    return recorded([shipped.asset(DENOISED)])


@pytest.fixture(scope="module", params=[DENOISED, TOKENS])
def pipe(request: pytest.FixtureRequest) -> Any:
    return quiet(request.param)


def quiet(name: str) -> Any:
    made = mmspec.Pipeline.from_pretrained(f"mmspec/{name}")
    made.set_progress_bar_config(disable=True)
    return made


def walk(pipe: Any, clips: RecordedClips, clip: int, actions: Any = None, **how: Any) -> Any:
    """New frames `[new, 3, height, width]` in [0, 1] behind the first ones of a clip, and the call's output."""
    first = (clips.frames[clip, :GIVEN] + 1) / 2
    recorded_ones = clips.actions[clip, GIVEN - 1 : GIVEN - 1 + NEW].tolist()
    given = {"num_frames": NEW, "past_actions": clips.actions[clip, : GIVEN - 1].tolist(), "seed": 0} | how
    made = pipe(first, recorded_ones if actions is None else actions, output_type="pt", **given)
    return made.frames[0], made


def test_frames_are_those_of_plain_on_a_recorded_trace(pipe: Any, clips: RecordedClips, thinker: Any) -> None:
    """Of codes: all actions are known. Denoised: they are told one by one, and guesses are made to the end."""
    coded = not hasattr(pipe.transformer.config, "objective")
    plain, _ = walk(pipe.use("plain"), clips, 0)
    if coded:
        frames, made = walk(pipe.use("frame-gs-sjd", k=32), clips, 0)
        assert torch.equal(frames, plain) and made.report.acceptance_length > 3
        return
    trace = clips.actions[0, GIVEN - 1 :].tolist()
    pipe.use("branch-prediction", k=1)
    frames, made = walk(pipe, clips, 0, thinker(pipe, trace))
    assert torch.equal(frames, plain) and made.report.exactness == "invariant"
    assert made.report.accepted > 0 and made.discarded + made.report.accepted == NEW - 1, "one guess an answer"


@pytest.mark.slow
@pytest.mark.parametrize("name", [TOKENS, DENOISED])
def test_who_walks_around_comes_back(name: str) -> None:
    """48 frames past all four landmarks, of which the model sees eight at a time: no drift to somewhere else."""
    pipe, tour = quiet(name), recorded([shipped.asset(DENOISED)], TOUR_CLIP)
    pipe.use("frame-gs-sjd" if name == TOKENS else "plain")
    made = pipe((tour.frames[0, :1] + 1) / 2, tour.actions[0].tolist(), seed=0, output_type="pt").frames[0]
    near = psnr(made.float() * 2 - 1, tour.frames[0, 1:])
    elsewhere = psnr(tour.frames[0, 1:], tour.frames[0, 1:].roll(12, 0))
    assert near.mean() > 25 and near.min() > elsewhere.mean() + 3


@pytest.fixture(scope="module")
def denoised() -> Any:
    return quiet(DENOISED)


@pytest.mark.slow  # what the weights know; that they are run as ever is on file: tests/recorded
def test_the_next_frame_is_nearer_than_the_last_one(denoised: Any, clips: RecordedClips) -> None:
    """PSNR, mean over places of all clips; repeating the last frame is what costs nothing."""
    made, repeated = [], []
    for clip in range(len(clips.frames)):
        for begin in range(0, clips.frames.shape[1] - GIVEN, 6):
            part = RecordedClips(clips.frames[:, begin:], clips.actions[:, begin:])
            frames, _ = walk(denoised, part, clip, part.actions[clip, GIVEN - 1 : GIVEN].tolist(), num_frames=1)
            truth = part.frames[clip, GIVEN : GIVEN + 1]
            made.append(float(psnr(frames[:1] * 2 - 1, truth)))
            repeated.append(float(psnr(part.frames[clip, GIVEN - 1 : GIVEN], truth)))
    assert np.mean(made) > np.mean(repeated) + 1


@pytest.mark.slow
def test_walls_move_as_the_actions_say(pipe: Any, clips: RecordedClips) -> None:
    """In the places where the clips begin: for whoever keeps turning; whoever stays sees next to nothing move."""
    told = [[action] * 12 for action in ("left", "right", "stay") for _ in clips.frames]
    first = (clips.frames[:, :1] + 1) / 2
    method = "plain" if hasattr(pipe.transformer.config, "objective") else "frame-gs-sjd"
    frames = pipe.use(method)(first.repeat(3, 1, 1, 1, 1), told, seed=0, output_type="pt").frames
    numbers = torch.tensor([[pipe.config.actions.index(action) for action in row[1:]] for row in told])
    by, shows = moved(frames[:, :-1], frames[:, 1:])
    turns = numbers != pipe.config.actions.index("stay")
    assert (shows & turns).sum() > 25
    assert turned_as_told(frames, numbers, pipe.config.actions) > 0.9
    assert (by * shows)[~turns].abs().float().mean() < 0.1 * by[shows & turns].abs().float().mean()


@pytest.fixture(scope="module")
@torch.no_grad()
def windows(clips: RecordedClips) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The token model; codes of whole windows `[part, frame, cell]`, parts of a clip in a row; their actions."""
    pipe = quiet(TOKENS)
    frames = pipe.transformer.config.frames
    places = [slice(begin, begin + frames) for begin in range(0, clips.actions.shape[1] - frames, frames)]
    parts = [(clip, at) for clip in range(len(clips.frames)) for at in places]
    codes = torch.stack([pipe.vae.encode(clips.frames[clip, at]).codes.flatten(1) for clip, at in parts])
    return pipe.transformer, codes, torch.stack([clips.actions[clip, at] for clip, at in parts])


@pytest.mark.slow  # what the weights know; that they are run as ever is on file: tests/recorded
@torch.no_grad()
def test_codes_are_likelier_behind_the_frames_before(windows: Any, clips: RecordedClips) -> None:
    """Behind frames of another clip, the codes that came are a surprise."""
    model, codes, done = windows
    other = torch.cat([codes.roll(len(codes) // len(clips.frames), 0)[:, :-1], codes[:, -1:]], 1)
    nats = []
    for before in (codes, other):
        units = sequence(before, done, model.config.vocab_size)
        last = -model(units[:, :-1]).log_softmax(-1)[:, -1 - model.cells : -1]
        nats.append(float(last.gather(-1, codes[:, -1, :, None]).mean()))
    assert nats[0] < nats[1] - 1


@pytest.mark.slow  # what the weights know; that they are run as ever is on file: tests/recorded
@torch.no_grad()
def test_codes_are_likelier_behind_what_was_done(windows: Any) -> None:
    """Behind every action but the ones that were taken, the codes that came are less likely."""
    model, codes, done = windows
    nats = []
    for other in range(model.config.actions):
        units = sequence(codes, (done + other) % model.config.actions, model.config.vocab_size)
        nats.append(float(next_code(model, units, units)))
    assert nats[0] < min(nats[1:]) - 0.3


def test_the_card_says_how_they_are_used(pipe: Any) -> None:
    decoder = pipe.use("auto").decoder()
    coded = not hasattr(pipe.transformer.config, "objective")
    assert decoder.name == ("frame-gs-sjd" if coded else "branch-prediction")
    assert decoder.why.startswith(f"{decoder.name}, because the card of mmspec/four-courts")


def test_all_of_it_is_small() -> None:
    files = [file for name in (DENOISED, TOKENS) for file in shipped.asset(name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 14_000_000
    assert not [file for file in files if file.suffix in {".bin", ".pt", ".ckpt"}], "weights are safetensors"
    folder: Path = shipped.asset(DENOISED)
    assert (folder / STUDENT / "config.json").is_file() and (folder / CLIPS).is_file()
