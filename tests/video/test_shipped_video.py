"""The worlds that we ship: the same frames as plain decoding, in less time; frames that follow the actions."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mmspec
from mmspec import shipped
from mmspec_video.bench.clips import Recorded, recorded
from mmspec_video.bench.fidelity import psnr
from mmspec_video.train.ship import CLIPS, DENOISED, STUDENT, TOKENS

GIVEN, NEW = 4, 12


@pytest.fixture(scope="module")
def clips() -> Recorded:
    return recorded([shipped.asset(DENOISED)])


@pytest.fixture(scope="module", params=[DENOISED, TOKENS])
def pipe(request: pytest.FixtureRequest) -> Any:
    made = mmspec.Pipeline.from_pretrained(f"mmspec/{request.param}")
    made.set_progress_bar_config(disable=True)
    return made


def walk(pipe: Any, clips: Recorded, clip: int, actions: Any = None, **how: Any) -> Any:
    """New frames `[new, 3, height, width]` in [0, 1] behind the first ones of a clip, and the call's output."""
    first = (clips.frames[clip, :GIVEN] + 1) / 2
    recorded_ones = clips.actions[clip, GIVEN - 1 : GIVEN - 1 + NEW].tolist()
    given = {"num_frames": NEW, "past_actions": clips.actions[clip, : GIVEN - 1].tolist(), "seed": 0} | how
    made = pipe(first, recorded_ones if actions is None else actions, output_type="pt", **given)
    return made.frames[0], made


def test_frames_are_those_of_plain_on_a_recorded_trace(pipe: Any, clips: Recorded) -> None:
    """Of codes: all actions are known. Denoised: they are told one by one, and guesses are made to the end."""
    coded = not hasattr(pipe.transformer.config, "objective")
    plain, _ = walk(pipe.use("plain"), clips, 0)
    if coded:
        frames, made = walk(pipe.use("frame-gs-sjd", k=32), clips, 0)
        assert torch.equal(frames, plain) and made.report.acceptance_length > 1.5
        return
    trace = clips.actions[0, GIVEN - 1 :].tolist()

    def player(number: int, frames: torch.Tensor) -> int:
        time.sleep(0.5)  # longer than a frame takes, so that guesses are there
        return trace[number]

    frames, made = walk(pipe.use("branch-prediction", k=1), clips, 0, player)
    assert torch.equal(frames, plain) and made.report.exactness == "invariant"
    assert made.report.accepted > 0


def test_frames_ahead_are_nearer_than_the_last_frame(pipe: Any, clips: Recorded) -> None:
    """PSNR of the next frame, mean over all places of all clips; repeating the last frame is what costs nothing."""
    made, repeated = [], []
    for clip in range(len(clips.frames)):
        for begin in range(0, clips.frames.shape[1] - GIVEN, 3):
            part = Recorded(clips.frames[:, begin:], clips.actions[:, begin:])
            frames, _ = walk(pipe.use("auto"), part, clip, part.actions[clip, GIVEN - 1 : GIVEN].tolist(), num_frames=1)
            truth = part.frames[clip, GIVEN : GIVEN + 1]
            made.append(float(psnr(frames[:1] * 2 - 1, truth)))
            repeated.append(float(psnr(part.frames[clip, GIVEN - 1 : GIVEN], truth)))
    assert np.mean(made) > np.mean(repeated)


def test_frames_follow_the_actions(pipe: Any, clips: Recorded) -> None:
    """Whoever turns sees more change than whoever stays."""
    change = {}
    for action in ("stay", "left"):
        frames, _ = walk(pipe.use("auto"), clips, 0, [action] * NEW)
        change[action] = float((frames[1:] - frames[:-1]).abs().mean())
    assert change["left"] > 2 * change["stay"]


def test_the_card_says_how_they_are_used(pipe: Any) -> None:
    decoder = pipe.use("auto").decoder()
    coded = not hasattr(pipe.transformer.config, "objective")
    assert decoder.name == ("frame-gs-sjd" if coded else "branch-prediction")
    assert decoder.why.startswith(f"{decoder.name}, because the card of mmspec/my-way-home")


def test_all_of_it_is_small() -> None:
    files = [file for name in (DENOISED, TOKENS) for file in shipped.asset(name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 14_000_000
    assert not [file for file in files if file.suffix in {".bin", ".pt", ".ckpt"}], "weights are safetensors"
    folder: Path = shipped.asset(DENOISED)
    assert (folder / STUDENT / "config.json").is_file() and (folder / CLIPS).is_file()
