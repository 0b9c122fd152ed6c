"""Diffusion frames: cached equals recomputed, frames of guessed actions equal plain's, and nothing else remains."""

import itertools
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import take_nodes
from mmspec.core.philox import PhiloxNoise, PhiloxSource
from mmspec.core.types import Draft
from mmspec_video.drafters.action_model import ActionModel, ActionModelOptions
from mmspec_video.drafters.action_repeat import ActionRepeat
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.targets.denoiser import StoppedError
from mmspec_video.targets.frames import FramesTarget
from mmspec_video.targets.tree import FramePrompt

ACTIONS, WINDOW, LENGTH, GIVEN = 4, 5, 7, 2
TRACES = {
    "repeats": [1] * LENGTH,
    "alternates": ([1, 2] * LENGTH)[:LENGTH],
    **{f"switches at {i}": [1] * i + [2] * (LENGTH - i) for i in range(1, LENGTH)},
}
DRAFTERS = {
    "repeat": ActionRepeat,
    "model": ActionModel,
    "branches": lambda: ActionModel(ActionModelOptions(branches=3)),
}


class Wrong(ActionRepeat):
    """Always guesses an action that is never taken."""

    def propose(self, state, k, noise):
        draft = super().propose(state, k, noise)
        return replace(draft, units=torch.full_like(draft.units, 3))


class OwnTrees(ActionRepeat):
    """Every other row guesses two repeats, the others a repeat or another action: the device knows the trees."""

    def propose(self, state, k, noise):
        odd = (torch.arange(state.rows) % 2)[:, None]
        units = torch.cat([state.root[:, None], (state.root[:, None] + odd) % ACTIONS], 1)
        return Draft.tree(units, torch.cat([torch.full_like(odd, -1), -odd], 1))


def opening(model, rows=1, seed=7, action=None):
    frames = torch.randn(1, GIVEN, *model.frame_shape, generator=torch.Generator().manual_seed(0))
    actions = torch.tensor([[ACTIONS, 0]]).expand(rows, -1)
    action = torch.ones(rows, dtype=torch.int64) if action is None else action
    return FramePrompt(frames.expand(rows, -1, -1, -1, -1), actions, action, [seed + row for row in range(rows)])


def published(model, given, trace, sampler):
    """Frames as the published code makes them: the whole window anew in every step. `[length, …]`, of one row."""
    key = PhiloxSource.seeded([given.seed[0]], 1).key
    frames, actions = list(given.frames[0]), given.actions[0].tolist()
    for action in trace:
        actions.append(action)
        number = len(frames)
        at = torch.tensor([[number]])
        noise = [PhiloxNoise(key, at, torch.tensor([[s]])).normal(*model.frame_shape)[0, 0] for s in range(9)]
        first = max(0, number + 1 - model.window)
        x = sampler.begin(noise[0])
        for step in range(sampler.steps):
            clip = torch.stack([*frames[first:], x])[None]
            time = torch.full((1, clip.shape[1]), sampler.context_time)
            time[0, -1] = sampler.time(step)
            told = torch.tensor(actions[first:])[None]
            told = told if model.vectors is None else model.vectors[told]
            with torch.no_grad():
                out = model(clip, time, told)[0, -1]
            x = sampler.advance(x, out, step, noise[step + 1] if sampler.noisy else None)
        frames.append(x)
    return torch.stack(frames[GIVEN:])


def play(model, traces, drafter=None, k=2, cache="exact", truth=1, watch=None, seed=7, kind=FramesTarget):
    """The player's loop by hand: `[row, length, …]`, and the state."""
    traces = torch.as_tensor(traces)
    target = kind(model, cache=cache)
    decoder = Decoder(target, drafter, k=k)
    given = opening(model, len(traces), seed, traces[:, 0])
    state = decoder.start(given, traces.shape[1] + 1)
    padded = torch.cat([traces, traces[:, -1:].expand(-1, truth + 1)], 1)
    shown = [[] for _ in traces]
    while min(len(frames) for frames in shown) < traces.shape[1]:
        pending = decoder.speculate(state)
        told = padded.gather(1, state.emitted[:, None] + torch.arange(truth))
        before = list(state.host.emitted)
        step = decoder.settle(state, pending, truth=told)
        state.sync()
        path = torch.nn.functional.pad(step.verdict.path, (1, 0), value=0)
        for row, frames in enumerate(shown):
            frames.extend(
                pending.scores.auxiliary[row, path[row, i]] for i in range(state.host.emitted[row] - before[row])
            )
        if watch:
            watch(target, state)
        if state.finished:
            break
    return torch.stack([torch.stack(frames[: traces.shape[1]]) for frames in shown]), state


def close(a, b, tolerance=2e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["dit", "oasis"])
@pytest.mark.parametrize("cache", ["none", "exact", "streaming"])
def test_frames_are_those_of_the_published_loop(name, cache, request):
    model = request.getfixturevalue(name)
    trace = [1, 1, 2, 0, 3, 3]
    made, _ = play(model, [trace], cache=cache)
    expected = published(model, opening(model), trace, model.sampler)
    inside = WINDOW - GIVEN  # the first frames: nothing has left the window yet
    close(made[0, :inside], expected[:inside])
    apart = float((made[0, inside:] - expected[inside:]).abs().max())
    if cache == "streaming":
        assert apart > 1e-3  # keys know of frames that have left: another distribution, and said so
    else:
        assert apart < 2e-5


def test_a_noisy_sampler_draws_by_frame_and_step(dit):
    from mmspec_video.sampling import ConsistencySampler

    sampler, trace = ConsistencySampler(3, 0.05), [1, 2, 2, 0]
    target = FramesTarget(dit, sampler)
    decoder, given = Decoder(target), opening(dit)
    state, frames = decoder.start(given, len(trace) + 1), []
    for action in [*trace[1:], 0]:
        pending = decoder.speculate(state)
        frames.append(pending.scores.auxiliary[0, 0])
        decoder.settle(state, pending, truth=torch.tensor([[action]]))
        state.sync()
    close(torch.stack(frames), published(dit, given, trace, sampler))


@pytest.fixture(scope="module")
def plain(dit):
    """Plain frames of every trace, each alone."""
    return {name: play(dit, [trace])[0] for name, trace in TRACES.items()}


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.compiled("no shape")
def test_frames_of_guessed_actions_equal_plain(dit, plain, trace):
    for make in (ActionRepeat, ActionModel):
        made, _ = play(dit, [TRACES[trace]], make(), 2)
        assert torch.equal(made, plain[trace])


def test_frames_of_branches_equal_plain(dit, plain):
    """A batch of several frames: other sums, the same numbers up to rounding."""
    for trace in ("alternates", "switches at 3"):
        made, state = play(dit, [TRACES[trace]], DRAFTERS["branches"](), 2)
        close(made, plain[trace])
        assert state.report.accepted > 0


@pytest.mark.parametrize("cache", ["exact", "streaming", "none"])
@pytest.mark.compiled("no shape")
def test_rows_of_a_batch_equal_plain_whatever_was_guessed(oasis, cache):
    traces = [TRACES[name] for name in ("repeats", "alternates", "switches at 2", "switches at 5")]
    alone = torch.cat([play(oasis, [trace], cache=cache, seed=7 + i)[0] for i, trace in enumerate(traces)])
    for truth in (1, 3):
        together, _ = play(oasis, traces, DRAFTERS["branches"](), 3, cache, truth)
        close(together, alone, 1e-4)


@pytest.mark.parametrize("cache", ["exact", "streaming", "none"])
def test_rows_with_trees_of_their_own(dit, cache):
    traces = [TRACES["repeats"], TRACES["repeats"], TRACES["alternates"], TRACES["alternates"]]
    alone, _ = play(dit, traces, cache=cache)
    together, state = play(dit, traces, OwnTrees(), 2, cache)
    close(together, alone, 1e-4)
    assert 0 < state.report.accepted < state.report.drafted


@pytest.mark.parametrize("cache", ["exact", "streaming"])
def test_nothing_of_a_discarded_frame_remains(dit, cache):
    """After every round the window holds what plain play leaves behind, whatever was guessed."""
    traces, rounds = list(TRACES.values()), {}
    for name, make in {"plain": lambda: None, "wrong": Wrong, **DRAFTERS}.items():
        rounds[name] = left = []

        def keep(target, state, left=left):
            with torch.no_grad():
                left.append((target.denoiser.keyed(state.cache.window), state.cache.tree))

        play(dit, traces, make(), 3, cache, watch=keep)
    for name in ("wrong", *DRAFTERS):
        assert len(rounds[name]) == len(rounds["plain"]) == LENGTH
        for (window, tree), (expected, nothing) in zip(rounds[name], rounds["plain"], strict=True):
            assert nothing is None and (name != "wrong" or tree is None)
            close(window.frames, expected.frames)
            for own in ("actions", "filled", "number"):
                assert torch.equal(getattr(window, own), getattr(expected, own))
            pairs = zip(window.keys, expected.keys, strict=True)
            for ours, theirs in ((a, b) for pair in pairs for a, b in zip(*pair, strict=True)):
                assert ours.shape == theirs.shape
                close(ours, theirs)
            if tree is not None:  # what is left hangs on the action that came, and all else is blank
                below = [[root in line for line in lines] for root, lines in zip(tree.root, tree.lineage, strict=True)]
                below, available, keyed = map(torch.tensor, (below, tree.available, tree.keyed))
                assert (available <= below).all() and (keyed <= available).all()
                assert not tree.frames[~available].any() and not any(k[~keyed].any() for k, _ in tree.keys or ())


def test_hits_are_made_once_and_misses_are_the_only_waste(dit):
    repeats = [TRACES["repeats"]]
    _, state = play(dit, repeats)
    assert state.cache.denoised == LENGTH
    _, state = play(dit, repeats, ActionRepeat(), 1)
    assert state.cache.denoised == LENGTH and state.report.accepted_by_depth == [LENGTH - 1]
    _, state = play(dit, repeats, ActionRepeat(), 3)  # deeper guesses are kept, too
    assert state.cache.denoised == LENGTH
    _, state = play(dit, repeats, Wrong(), 1)
    assert state.cache.denoised == 2 * LENGTH - 1 and state.report.accepted == 0


def standing(cache):
    """The root's frames `[row, …]` where they are available, so that no pass is needed; else None."""
    tree = cache.tree
    return None if tree is None or not all(tree.rooted) else take_nodes(tree.frames, tree.places([tree.root]).T)[:, 0]


def test_a_hit_stands_ready_and_a_miss_does_not(dit):
    target = FramesTarget(dit)
    decoder = Decoder(target, ActionRepeat(), k=2)
    state = decoder.start(opening(dit), 5)
    assert standing(state.cache) is None
    pending = decoder.speculate(state)
    assert torch.equal(standing(state.cache), pending.scores.auxiliary[:, 0])
    decoder.settle(state, pending, truth=torch.tensor([[1]]))
    state.sync()
    assert torch.equal(standing(state.cache), pending.scores.auxiliary[:, 1])
    made = state.cache.denoised
    shown = Decoder(target).speculate(state)  # the root alone: nothing is made, what lies ahead stays
    assert torch.equal(shown.scores.auxiliary[:, 0], pending.scores.auxiliary[:, 1]) and state.cache.denoised == made
    deeper = decoder.speculate(state)
    assert (
        torch.equal(deeper.scores.auxiliary[:, 1], pending.scores.auxiliary[:, 2]) and state.cache.denoised == made + 1
    )
    decoder.settle(state, deeper, truth=torch.tensor([[3]]))
    assert standing(state.cache) is None


def test_whoever_stops_it_leaves_things_as_they_were(dit, plain):
    for passes in (1, 2, 3, 5):
        target = FramesTarget(dit)
        decoder, alone = Decoder(target, ActionRepeat(), k=3), Decoder(target)
        state, frames = decoder.start(opening(dit), LENGTH + 1), []
        for _ in range(LENGTH):
            pending = alone.speculate(state)
            frames.append(pending.scores.auxiliary[0, 0])
            asked = itertools.count()
            state.cache.until = lambda asked=asked, passes=passes: next(asked) >= passes
            with suppress(StoppedError):
                pending = decoder.speculate(state)
            state.cache.until = None
            decoder.settle(state, pending, truth=torch.tensor([[1]]))
            state.sync()
        assert torch.equal(torch.stack(frames), plain["repeats"][0])


def test_same_seed_same_frames_other_seed_other_frames(dit):
    trace = TRACES["alternates"]
    first, again, other = (play(dit, [trace], seed=seed)[0] for seed in (7, 7, 8))
    assert torch.equal(first, again) and (first - other).abs().max() > 0.1


def test_actions_matter(dit):
    assert (play(dit, [[1, 1, 1]])[0] - play(dit, [[1, 2, 1]])[0])[0].abs().amax((1, 2, 3))[0] == 0
    assert ((play(dit, [[1, 1, 1]])[0] - play(dit, [[1, 2, 1]])[0])[0].abs().amax((1, 2, 3))[1:] > 0.01).all()


def test_actions_cannot_be_generated(dit):
    with pytest.raises(ValueError, match="truth=units"):
        Decoder(FramesTarget(dit), ActionRepeat(), k=2).generate(opening(dit), 5)


def test_a_truth_longer_than_the_draft_ends_at_the_first_action_that_was_not_guessed(dit):
    decoder = Decoder(FramesTarget(dit), ActionRepeat(), k=1)
    state = decoder.start(opening(dit), 8)
    step = decoder.settle(state, decoder.speculate(state), truth=torch.tensor([[1, 1, 2]]))
    assert step.count.tolist() == [2]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (torch.zeros(1, 0, 2, 4, 4), "begins with 1 to 4 frames, not 0"),
        (torch.zeros(1, 5, 2, 4, 4), "begins with 1 to 4 frames, not 5"),
        (torch.zeros(1, 2, 2, 4, 5), r"are \[2, 4, 4\], not \[2, 4, 5\]"),
    ],
)
def test_frames_that_do_not_fit_are_refused(dit, frames, message):
    given = FramePrompt(frames, torch.zeros(1, frames.shape[1], dtype=torch.int64), torch.tensor([1]))
    with pytest.raises(ValueError, match=message):
        FramesTarget(dit).start(given, 5, 1)
    with pytest.raises(ValueError, match="cache is one of exact, streaming, none, not 'fast'"):
        FramesTarget(dit, cache="fast")
    with pytest.raises(ValueError, match=r"reads actions as vectors: set its \.vectors"):
        FramesTarget(OasisDiT(2, 2, 2, 2, hidden_size=32, depth=1, num_heads=2, external_cond_dim=3))


class NoiseInOrderOfCalls(FramesTarget):
    """Published samplers draw from the global generator: whoever makes more frames shifts all later noise."""

    def __init__(self, model, **how):
        super().__init__(model, **how)
        calls, noise = itertools.count(), self.denoiser.noise
        object.__setattr__(self.denoiser, "noise", lambda key, number, step: noise(key, number * 0 + next(calls), step))


class DiscardedFrameStays(FramesTarget):
    """A rollback that forgets the last frame of the window: what was drafted stays in, whatever came."""

    def commit(self, cache, path, count):
        made = cache.tree.frames.shape[1] > 1
        super().commit(cache, path.clamp(min=1) if made else path, count + int(made))


class GuessIsShown(FramesTarget):
    """Acceptance without a look at the action."""

    def commit(self, cache, path, count):
        made = cache.tree.frames.shape[1] > 1
        super().commit(cache, torch.ones_like(path) if made else path, count)


@pytest.mark.parametrize("mutant", [NoiseInOrderOfCalls, DiscardedFrameStays, GuessIsShown])
def test_the_comparison_sees_what_others_got_wrong(dit, mutant):
    """Each of these frameworks' bugs makes other frames under a wrong guess than plain play does."""
    trace = [TRACES["switches at 3"]]
    plain, _ = play(dit, trace, kind=mutant)
    made, _ = play(dit, trace, Wrong(), 1, kind=mutant)
    assert (plain - made).abs().max() > 1e-2
    right, _ = play(dit, trace, Wrong(), 1)
    close(right, play(dit, trace)[0])
