"""Text and poses are those of plain decoding, and the poses those of the model's own forward."""

import pytest
import torch
from mmspec_pose.chat import reply
from mmspec_pose.model import JOINTS, tiny

PROMPTS = torch.tensor([[0, 0, 3, 5, 7, 3, 5, 7], [4, 7, 9, 2, 4, 7, 9, 2]])
INPUTS = {"input_ids": PROMPTS, "attention_mask": (PROMPTS > 0).long()}
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
        assert torch.allclose(one.poses, other.poses, atol=1e-5)


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
        out = model(input_ids=whole, output_hidden_states=True)
        at = torch.nonzero(whole[0, PROMPTS.shape[1] :] == model.signal)[:, 0] + PROMPTS.shape[1]
        predicting, own = (model.pose(out.hidden_states[-1][0, places]) for places in (at - 1, at))
    assert predicting.shape[1:] == (JOINTS, 3) and torch.allclose(predicting, second.poses, atol=1e-4)
    assert not torch.allclose(own, second.poses, atol=1e-2)


def test_a_signal_token_right_behind_the_prompt_has_a_pose():
    """Its state is that of the prompt's last token, which prefill has read."""
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        state = model(input_ids=PROMPTS[1:], output_hidden_states=True).hidden_states[-1][0, -1]
        model.lm_head.weight[model.signal] = 50 * state
        inputs = {name: values[1:] for name, values in INPUTS.items()}
        (only,), _ = reply(model, inputs, 1, "plain", seed=4)
        assert only.ids.tolist() == [model.signal]
        assert torch.allclose(only.poses, model.pose(state[None]), atol=1e-4)


def test_a_head_that_reads_other_states_is_refused():
    with pytest.raises(ValueError, match="reads hidden states of its own choice"):
        reply(tiny(), INPUTS, 4, "eagle", drafter="mmspec/text-14m-eagle3")
