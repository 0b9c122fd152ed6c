"""Text and poses are those of plain decoding, and the poses those of the model's own forward."""

import pytest
import torch
from mmspec_pose.body import PARENTS, joints, rotations, stick_figures
from mmspec_pose.chat import reply
from mmspec_pose.model import prompts, tiny

INPUTS = prompts(torch.tensor([[0, 0, 3, 5, 7, 3, 5, 7], [4, 7, 9, 2, 4, 7, 9, 2]]))
PROMPTS = INPUTS["input_ids"]
HOW = {
    "prompt-lookup": {},
    "token-recycling": {},
    "draft-model": {"drafter": tiny()},
}


@pytest.mark.parametrize("method", HOW)
def test_text_and_poses_are_plain_decodings(method):
    plain, _ = reply(tiny(), INPUTS, 30, "plain", seed=4)
    ours, report = reply(tiny(), INPUTS, 30, method, seed=4, **HOW[method])
    assert report.accepted > 0
    for one, other in zip(plain, ours, strict=True):
        assert torch.equal(one.ids, other.ids) and len(one.ids) == 30
        assert len(one.poses) == int((one.ids == tiny().signal).sum()) > 0
        assert torch.allclose(one.poses, other.poses, atol=1e-4)


def test_in_passes_of_one_width_poses_are_equal_to_the_bit():
    ours, report = reply(tiny(), INPUTS, 30, "token-recycling", seed=4, shape="one")
    plain, _ = reply(tiny(), INPUTS, 30, "plain", seed=4, shape=report.width)
    for one, other in zip(plain, ours, strict=True):
        assert torch.equal(one.ids, other.ids) and torch.equal(one.poses, other.poses)


def test_poses_are_those_of_the_models_own_forward():
    """Of the states that predict signal tokens, at the place before each, and not of the signal tokens' own."""
    model = tiny()
    (_, second), _ = reply(model, INPUTS, 30, "prompt-lookup", seed=4)
    whole = torch.cat([PROMPTS[1], second.ids])[None]
    with torch.no_grad():
        out = model(input_ids=whole, pixel_values=INPUTS["pixel_values"][1:], output_hidden_states=True)
        at = torch.nonzero(whole[0, PROMPTS.shape[1] :] == model.signal)[:, 0] + PROMPTS.shape[1]
        predicting, own = (model.pose(out.hidden_states[-1][0, places]) for places in (at - 1, at))
    assert predicting.shape[1:] == (24, 3, 3) and torch.allclose(predicting, second.poses, atol=1e-4)
    assert not torch.allclose(own, second.poses, atol=1e-2)


def test_a_signal_token_right_behind_the_prompt_has_a_pose():
    """Its state is that of the prompt's last token, which prefill has read."""
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        inputs = {name: values[1:] for name, values in INPUTS.items()}
        state = model(**inputs, output_hidden_states=True).hidden_states[-1][0, -1]
        model.lm_head.weight[model.signal] = 50 * state
        (only,), _ = reply(model, inputs, 1, "plain", seed=4)
        assert only.ids.tolist() == [model.signal]
        assert torch.allclose(only.poses, model.pose(state[None]), atol=1e-4)


def test_a_head_that_reads_other_states_is_refused():
    with pytest.raises(ValueError, match="reads hidden states of its own choice"):
        reply(tiny(), INPUTS, 4, "eagle", drafter="mmspec/text-14m-eagle3")


def test_the_picture_decides_the_poses():
    other = prompts(torch.tensor([[0, 0, 3, 5, 7, 3, 5, 7], [4, 7, 9, 2, 4, 7, 9, 2]]), seed=1)
    one, two = (reply(tiny(), inputs, 30, "token-recycling", seed=4)[0][0] for inputs in (INPUTS, other))
    assert not torch.equal(one.ids, two.ids)


def test_six_numbers_are_a_rotation():
    made = rotations(torch.randn(5, 24, 6, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(made @ made.mT, torch.eye(3).expand(5, 24, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(made), torch.ones(5, 24))
    known = torch.linalg.qr(torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(1))).Q
    known = known * torch.linalg.det(known)[:, None, None]
    torch.testing.assert_close(rotations(known.mT[:, :2].flatten(1)), known)


def test_bones_keep_their_lengths_and_turn_with_their_parents():
    still = torch.eye(3).expand(24, 3, 3).clone()
    rest = joints(still)
    assert torch.equal(rest[4] * torch.tensor([-1.0, 1, 1]), rest[5]), "left and right"
    turned = rotations(torch.randn(24, 6, generator=torch.Generator().manual_seed(2)))
    lengths = [[(body[j] - body[p]).norm() for j, p in enumerate(PARENTS) if j] for body in (rest, joints(turned))]
    torch.testing.assert_close(*(torch.stack(each) for each in lengths))
    still[16] = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # the left upper arm turns up by a right angle
    moved = joints(still)
    assert torch.equal(moved[:17], rest[:17]) and torch.equal(moved[17], rest[17])
    arm = rest[[18, 20, 22]] - rest[16]
    torch.testing.assert_close(moved[[18, 20, 22]] - moved[16], torch.stack([-arm[:, 1], arm[:, 0], arm[:, 2]], 1))


def test_stick_figures_are_drawn():
    (first, _), _ = reply(tiny(), INPUTS, 30, "plain", seed=4)
    sheet = stick_figures(first.poses, side=64)
    assert sheet.size == (64 * len(first.poses), 64)
    figures = [sheet.crop((64 * n, 0, 64 * n + 64, 64)).tobytes() for n in range(len(first.poses))]
    assert len(set(figures)) > 1 and all(b"\0" in figure for figure in figures)
