"""A language model with a head for poses: a Llama whose signal token stands for a pose."""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

JOINTS = 4
"""Joints of a toy body, each an angle about three axes."""


class PoseLlama(LlamaForCausalLM):
    """A Llama, and an MLP from the state behind its final norm to the angles of a pose.

    Args:
        config: Its configuration; `signal_token_id` is the token that stands for a pose.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.signal = int(config.signal_token_id)
        width = config.hidden_size
        self.pose_head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 3 * JOINTS))

    def pose(self, states: Tensor) -> Tensor:
        """Poses `[n, joint, axis]` of the states `[n, width]` that signal tokens are drawn from."""
        return self.pose_head(states).unflatten(-1, (JOINTS, 3))


def tiny(seed: int = 0) -> PoseLlama:
    """A small model of random weights, which often writes the signal token."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        signal_token_id=7,
        eos_token_id=None,
    )
    model = PoseLlama(config).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            nn.init.normal_(weights, std=0.35)
    with torch.no_grad():
        model.lm_head.weight[model.signal] *= 2
    return model
