"""`NextFrameDiT`: who sees whom, what actions and times do, sizes; and the samplers' numbers."""

import math

import pytest
import torch

from mmspec_video.models.keys import LayerKeys, causal, current
from mmspec_video.models.layers import frame_rotary
from mmspec_video.models.next_frame import SIZES, NextFrameDiT
from mmspec_video.sampling import ConsistencySampler, FlowSampler, OasisSampler
from tests.support.close import assert_near


def clip(frames=4, rows=2):
    g = torch.Generator().manual_seed(0)
    x, time = torch.randn(rows, frames, 2, 4, 4, generator=g), torch.rand(rows, frames, generator=g)
    return x, time, torch.randint(5, (rows, frames), generator=g)


@torch.no_grad()
def changed(model, **how):
    """Where the velocity differs, `[frame, row of cells, column of cells]`, if something about frame 2 does."""
    x, time, actions = clip()
    other = [x.clone(), time.clone(), actions.clone()]
    if "cell" in how:
        other[0][:, 2, :, 0, 0] += 1.0  # one pixel of the upper left cell
    if "time" in how:
        other[1][:, 2] = (time[:, 2] + 0.5) % 1
    if "action" in how:
        other[2][:, 2] = (actions[:, 2] + 1) % 5
    apart = (model(x, time, actions) - model(*other)).abs().amax((0, 2))
    return apart.unflatten(1, (2, 2)).unflatten(3, (2, 2)).amax((2, 4))


@pytest.mark.parametrize("what", ["cell", "time", "action"])
def test_full_attention_within_a_frame_and_causal_over_frames(dit, what):
    apart = changed(dit, **{what: True})
    assert apart[:2].max() == 0  # nothing before frame 2
    assert (apart[2:] > 1e-4).all()  # every cell of it, and of what comes after


def test_a_frame_at_a_time_behind_keys_is_the_whole_clip_at_once(dit):
    x, time, actions = clip()
    with torch.no_grad():
        whole = dit(x, time, actions)
        kept = None
        for i in range(4):
            keys = [LayerKeys(), LayerKeys()] if kept is None else [LayerKeys(pair) for pair in kept]
            at = torch.full((2, 1), i)
            made = dit(x[:, i : i + 1], time[:, i : i + 1], actions[:, i : i + 1], at, None, keys)
            assert_near(made[:, 0], whole[:, i], 1e-4)
            new = current(keys)
            kept = (
                new
                if kept is None
                else [(torch.cat([a, c], 1), torch.cat([b, d], 1)) for (a, b), (c, d) in zip(kept, new, strict=True)]
            )
        seen = torch.cat([torch.ones(2, 2, 2, dtype=torch.bool), causal(2).expand(2, -1, -1)], 2)
        half = [(k[:, :2], v[:, :2]) for k, v in kept]
        both = dit(
            x[:, 2:], time[:, 2:], actions[:, 2:], torch.tensor([[2, 3]] * 2), seen, [LayerKeys(pair) for pair in half]
        )
    assert_near(both, whole[:, 2:], 1e-4)


def test_where_a_clip_begins_does_not_matter(dit):
    x, time, actions = clip()
    with torch.no_grad():
        early, late = (dit(x, time, actions, torch.arange(n, n + 4).expand(2, -1)) for n in (0, 900))
    torch.testing.assert_close(early, late, rtol=1e-3, atol=1e-3)


def test_modulations_begin_at_zero():
    torch.manual_seed(0)
    model = NextFrameDiT(2, 4, 4, 4, patch=2, dim=32, depth=2, heads=2)
    x, time, actions = clip()
    block, inner = model.blocks[0], torch.randn(2, 4, 4, 32)
    condition = model.t_embedder(1000 * time) + model.action_embedder(actions)
    rotary = frame_rotary(torch.arange(4).expand(2, -1), 2, 2, 16).flatten(1, 2)
    assert torch.equal(block(inner, condition, rotary, causal(4), None), inner)
    assert model(x, time, actions).abs().max() == 0


def test_sizes_are_those_of_the_paper():
    counts = {}
    for size in SIZES:
        with torch.device("meta"):
            counts[size] = sum(p.numel() for p in NextFrameDiT.of_size(size, channels=16).parameters()) / 1e6
    assert counts["tiny"] < 0.3 and round(counts["3m"]) == 3
    assert abs(counts["130m"] - 130) < 5 and abs(counts["310m"] - 310) < 8


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="there is no size '1b'; there are tiny, 3m, 130m, 310m"):
        NextFrameDiT.of_size("1b")
    with pytest.raises(ValueError, match="3 heads do not divide a width of 64"):
        NextFrameDiT(heads=3)
    with pytest.raises(ValueError, match="patches of 3 do not tile frames of 8 × 8"):
        NextFrameDiT(patch=3)
    with pytest.raises(ValueError, match="objective is one of flow, consistency, not 'v'"):
        NextFrameDiT(objective="v")


def test_flow_steps_follow_a_straight_path_to_its_end():
    frame, noise = torch.randn(2, 3), torch.randn(2, 3)
    sampler = FlowSampler(5)
    x = sampler.begin(noise)
    for step in range(5):
        torch.testing.assert_close(x, torch.lerp(frame, noise, sampler.time(step)))
        x = sampler.advance(x, noise - frame, step, None)
    torch.testing.assert_close(x, frame)
    assert [FlowSampler(4).time(s) for s in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_jumps_lead_to_the_frame_and_part_of_the_way_back():
    frame, noise, fresh = torch.randn(3), torch.randn(3), torch.randn(3)
    sampler = ConsistencySampler(2)
    x = sampler.advance(noise, noise - frame, 0, fresh)
    torch.testing.assert_close(x, (frame + fresh) / 2)
    torch.testing.assert_close(sampler.advance(x, fresh - frame, 1, None), frame)


def test_oasis_steps_are_ddim_under_the_sigmoid_schedule():
    """By the formulas of 2010.02502 and 2202.00512, from numbers computed one by one."""

    def sigmoid(u):
        return 1 / (1 + math.exp(-u))

    def level(t):  # share of the signal, before the published code's clipping
        return (sigmoid(3) - sigmoid(6 * t / 1000 - 3)) / (sigmoid(3) - sigmoid(-3))

    sampler = OasisSampler(10)
    assert [sampler.time(s) for s in range(10)] == [999, 899, 799, 699, 599, 499, 399, 299, 199, 99]
    for time in (0, 99, 500, 899):
        assert abs(float(sampler.kept[time]) - level(time + 1)) < 1e-5
    frame, noise = torch.randn(3), torch.randn(3)
    x, v = None, None
    for step in (3, 9):
        kept = level(sampler.time(step) + 1)
        x = math.sqrt(kept) * frame + math.sqrt(1 - kept) * noise
        v = math.sqrt(kept) * noise - math.sqrt(1 - kept) * frame
        after = 1.0 if step == 9 else level(sampler.time(step + 1) + 1)
        expected = math.sqrt(after) * frame + math.sqrt(1 - after) * noise
        torch.testing.assert_close(sampler.advance(x, v, step, None), expected, rtol=1e-3, atol=1e-3)
    assert sampler.begin(torch.tensor([99.0, -99.0])).tolist() == [20, -20]
