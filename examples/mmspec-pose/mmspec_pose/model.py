"""A vision-language model with a head for poses: a Llava whose signal token stands for a pose, as in ChatPose."""

import torch
from torch import Tensor, nn
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from mmspec_pose.body import PARENTS, rotations

IMAGE = 23
"""The id that stands for a patch of a picture, in the tiny model."""
PATCHES, SIDE = 16, 32
"""Of a picture of the tiny model."""


class PoseLlava(LlavaForConditionalGeneration):
    """A Llava, and an MLP from the state that a signal token is drawn from to a pose.

    Args:
        config: Its configuration; `signal_token_id` is the token that stands for a pose.
    """

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.signal = int(config.signal_token_id)
        width = config.text_config.hidden_size
        self.pose_head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6 * len(PARENTS)))

    def pose(self, states: Tensor) -> Tensor:
        """Poses of states `[n, width]`: the rotations `[n, joint, 3, 3]` of 24 joints against their parents."""
        return rotations(self.pose_head(states).unflatten(-1, (len(PARENTS), 6)))


def tiny(seed: int = 0) -> PoseLlava:
    """A small model of random weights, which often writes the signal token."""
    torch.manual_seed(seed)
    text = LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
    )
    eyes = CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=8
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=eyes,
        image_token_index=IMAGE,
        image_seq_length=PATCHES,
        signal_token_id=7,
        eos_token_id=None,
    )
    model = PoseLlava(config).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            nn.init.normal_(weights, std=0.35)
    with torch.no_grad():
        model.lm_head.weight[model.signal] *= 2
    return model


def prompts(texts: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Prompts `[row, token]`, padded with 0 on the left, of the tiny model, behind a picture of random pixels each."""
    ids = torch.zeros(len(texts), PATCHES + texts.shape[1], dtype=torch.int64)
    for row, text in enumerate(texts):
        said = text[text > 0]
        ids[row, -len(said) :] = said
        ids[row, -PATCHES - len(said) : -len(said)] = IMAGE
    pixels = torch.randn(len(texts), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "pixel_values": pixels}
