"""The released layout: written as its authors' class names its weights, from a model of ours, and read again."""

import json

import pytest
import torch
from mmspec_pose.chat import reply
from mmspec_pose.model import IMAGE, prompts, tiny
from mmspec_pose.released import load_released
from safetensors.torch import save_file
from transformers import CLIPVisionModel

VOCAB = IMAGE  # of the released model: pictures have the id behind it
NAMES = {
    "pose_head.": "model.text_hidden_fcs.0.",
    "model.multi_modal_projector.linear_1.": "model.mm_projector.0.",
    "model.multi_modal_projector.linear_2.": "model.mm_projector.2.",
    "model.language_model.": "model.",
}


@pytest.fixture
def weights():
    """Of the tiny model, under released keys, without CLIP."""
    found = {"model.smplx.shapedirs": torch.zeros(3)}
    for key, value in tiny().state_dict().items():
        begins = next((name for name in NAMES if key.startswith(name)), "")
        if not key.startswith("model.vision_tower"):
            rows = value[:VOCAB] if key.endswith(("embed_tokens.weight", "lm_head.weight")) else value
            found[NAMES.get(begins, "") + key.removeprefix(begins)] = rows.clone()
    return found


@pytest.fixture
def folders(tmp_path):
    """Of the language model, without weights, and of CLIP."""
    text, vision = tiny().config.text_config, tmp_path / "clip"
    config = {**text.to_dict(), "vocab_size": VOCAB, "mm_projector_type": "mlp2x_gelu", "mm_vision_select_layer": -2}
    (tmp_path / "pose").mkdir()
    (tmp_path / "pose" / "config.json").write_text(json.dumps(config))
    (tmp_path / "pose" / "added_tokens.json").write_text('{"[SEG]": 7, "<im_start>": 8}')
    eyes = CLIPVisionModel(tiny().config.vision_config)
    eyes.load_state_dict(tiny().model.vision_tower.state_dict())
    eyes.save_pretrained(vision)
    return tmp_path / "pose", vision


def test_text_and_poses_are_those_of_the_same_weights(folders, weights):
    save_file(weights, folders[0] / "model.safetensors")
    loaded, inputs = load_released(*folders), prompts(torch.tensor([[4, 7, 9, 2, 4, 7, 9, 2]]))
    assert loaded.signal == 7 and loaded.config.image_token_index == IMAGE
    with torch.no_grad():
        ours, theirs = (model(**inputs).logits for model in (loaded, tiny()))
    torch.testing.assert_close(ours[..., :VOCAB], theirs[..., :VOCAB])
    plain, fast = (reply(loaded, inputs, 30, method, seed=4)[0][0] for method in ("plain", "token-recycling"))
    assert torch.equal(plain.ids, fast.ids) and len(plain.poses) > 0
    assert torch.allclose(plain.poses, fast.poses, atol=1e-4)


def test_pickles_are_read_in_parts(folders, weights):
    keys = sorted(weights)
    torch.save({key: weights[key] for key in keys[:9]}, folders[0] / "pytorch_model-00001-of-00002.bin")
    torch.save({key: weights[key] for key in keys[9:]}, folders[0] / "pytorch_model-00002-of-00002.bin")
    assert torch.equal(load_released(*folders).pose_head[2].weight, weights["model.text_hidden_fcs.0.2.weight"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("model.text_hidden_fcs.0.2.bias"), "head is .*0.2.bias.*; here are"),
        (lambda w: w.update({"model.text_hidden_fcs.1.0.weight": torch.zeros(2, 2)}), "here are .*text_hidden_fcs.1.0"),
        (lambda w: w.update({"model.text_hidden_fcs.0.2.weight": torch.zeros(256, 32)}), "makes 256 numbers, .* 144"),
        (lambda w: w.pop("model.norm.weight"), r"missing \['model.language_model.norm.weight'\]"),
        (lambda w: w.update({"model.visual_model.x": torch.zeros(1)}), "without a place .*visual_model.x"),
    ],
)
def test_other_layouts_are_refused_by_name(folders, weights, change, said):
    change(weights)
    save_file(weights, folders[0] / "model.safetensors")
    with pytest.raises(ValueError, match=said):
        load_released(*folders)


def test_a_folder_without_weights_signal_or_projector_is_refused(folders, weights):
    with pytest.raises(ValueError, match=r"no \*.safetensors and no pytorch_model"):
        load_released(*folders)
    save_file(weights, folders[0] / "model.safetensors")
    (folders[0] / "added_tokens.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no signal token \(\[SEG\] or \[POSE\]\)"):
        load_released(*folders)
    (folders[0] / "added_tokens.json").write_text('{"[POSE]": 7}')
    config = json.loads((folders[0] / "config.json").read_text()) | {"mm_projector_type": "linear"}
    (folders[0] / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="by mlp2x_gelu, and this one by 'linear'"):
        load_released(*folders)
