"""Toy world model: frames are computed for guessed actions, and the player's actions decide which are kept."""

import itertools

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.philox import PhiloxNoise
from tests.support.toys.frames import FramesTarget, Scene
from tests.support.toys.frames_drafters import EveryAction, RepeatAction

ACTIONS, NEVER = 4, 3
TARGET = FramesTarget.random(ACTIONS, seed=0)
LENGTH = 12
TRACES = {
    "repeats": [1] * LENGTH,
    "alternates": [1, 2] * (LENGTH // 2),
    **{f"switches at {i}": [1] * i + [2] * (LENGTH - i) for i in range(1, LENGTH)},
}
DRAFTERS = {"none": lambda: None, "repeat": RepeatAction, "never": lambda: RepeatAction(NEVER), "every": EveryAction}


def scene(traces, seed=0):
    frame = torch.linspace(-1, 1, 5).expand(len(traces), 5)
    return Scene(frame, traces[:, 0], [seed] * len(traces))


def expected_frames(trace):
    """The frames of one row, action by action, without a decoder: `[length, size]`."""
    started = TARGET.start(scene(trace[None]), 1, 1)
    frame, frames = started.cache.frame, []
    for number, action in enumerate(trace):
        at = torch.tensor([[number]])
        noise = PhiloxNoise(started.cache.key, at, torch.zeros_like(at)).normal(5)[:, 0] / 4
        frame = torch.tanh(0.8 * frame.roll(1, -1) + TARGET.effect[action] + noise)
        frames.append(frame[0])
    return torch.stack(frames)


def play(traces, drafter, steps, k=3):
    """The player's loop by hand. Returns the state, and the frames that stood, row by row."""
    traces = torch.as_tensor(traces)
    rows, length = traces.shape
    decoder = Decoder(TARGET, drafter, k=k)
    state = decoder.start(scene(traces), length)
    shown = [[] for _ in range(rows)]
    padded = torch.cat([traces, traces[:, -1:].expand(-1, steps)], 1)
    while not state.finished:
        pending = decoder.speculate(state)
        truth = padded.gather(1, state.emitted[:, None] + torch.arange(steps))
        before = list(state.host.emitted)
        step = decoder.settle(state, pending, truth=truth)
        state.sync()
        path = torch.nn.functional.pad(step.verdict.path, (1, 0), value=0)
        for row in range(rows):
            for i in range(state.host.emitted[row] - before[row]):  # the root's frame, then the accepted ones
                shown[row].append(step.scores.auxiliary[row, path[row, i]])
    return state, [torch.stack(frames) for frames in shown]


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("name", DRAFTERS)
def test_frames_and_actions_equal_plain(name, steps):
    traces = torch.tensor(list(TRACES.values()))
    state, shown = play(traces, DRAFTERS[name](), steps)
    assert torch.equal(torch.stack(state.output()), traces)
    for row, trace in enumerate(traces):
        expected = expected_frames(trace)
        assert len(shown[row]) == LENGTH - 1  # the last action's frame is made by the next pass
        torch.testing.assert_close(shown[row], expected[:-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_nothing_of_a_discarded_frame_remains(steps):
    """After every round the cache holds what plain play leaves behind, whatever was guessed."""
    traces = torch.tensor(list(TRACES.values()))
    rows, frames = torch.arange(len(traces)), torch.stack([expected_frames(trace) for trace in traces])
    padded = torch.cat([traces, traces[:, -1:].expand(-1, steps)], 1)
    for name in DRAFTERS:
        decoder = Decoder(TARGET, DRAFTERS[name](), k=3)
        state = decoder.start(scene(traces), LENGTH)
        while not state.finished:
            pending = decoder.speculate(state)
            decoder.settle(state, pending, truth=padded.gather(1, state.emitted[:, None] + torch.arange(steps)))
            state.sync()
            cache, committed = state.cache, state.emitted - 1
            assert torch.equal(cache.length, committed)
            torch.testing.assert_close(cache.frame, frames[rows, committed - 1], rtol=0, atol=1e-6)
            coming = frames[rows, torch.where(cache.ready, committed, committed - 1)]
            torch.testing.assert_close(cache.coming, coming, rtol=0, atol=1e-6)
            assert torch.equal(cache.frames[:, 0], cache.frame) and cache.frames.shape[1] == 1


def test_hits_are_counted_and_never_rendered_twice():
    constant = [[1] * LENGTH] * 2
    state, _ = play(constant, RepeatAction(), steps=1, k=1)
    assert state.report.accepted_by_depth == [2 * (LENGTH - 2)]  # the last round has no room for a draft
    # Every frame once; plain play renders the same number, later.
    assert state.cache.rendered.tolist() == [LENGTH - 1] * 2
    state, _ = play(constant, None, steps=1)
    assert state.cache.rendered.tolist() == [LENGTH - 1] * 2
    state, _ = play(constant, RepeatAction(NEVER), steps=1, k=1)
    assert state.report.accepted == 0
    assert state.cache.rendered.tolist() == [2 * (LENGTH - 1) - 1] * 2


def test_rounds_saved_when_truth_comes_in_threes():
    rounds = {}
    for name in DRAFTERS:
        decoder = Decoder(TARGET, DRAFTERS[name](), k=3)
        trace = torch.tensor([[1] * LENGTH])
        state = decoder.start(scene(trace), LENGTH)
        for turn in itertools.count(1):
            step = decoder.settle(state, decoder.speculate(state), truth=trace[:, :3])
            state.sync()
            assert step.count.max() <= 3
            if state.finished:
                rounds[name] = turn
                break
    assert rounds == {"none": 11, "repeat": 4, "never": 11, "every": 6}


def test_actions_cannot_be_generated():
    decoder = Decoder(TARGET, RepeatAction(), k=2)
    with pytest.raises(ValueError, match="truth=units"):
        decoder.generate(scene(torch.tensor([[1]])), 5)


def test_frames_do_not_depend_on_the_batch():
    traces = torch.tensor(list(TRACES.values()))
    _, together = play(traces, RepeatAction(), 2)
    for row in (0, 5):
        _, alone = play(traces[row : row + 1], RepeatAction(), 2)
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-6)
