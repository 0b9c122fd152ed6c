"""A call: the text is decoded speculatively, and the states that its signal tokens are drawn from become poses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.authors import FINAL, UnitStates, Warp, decoder_for
from mmspec_pose.model import PoseLlava


@dataclass(frozen=True)
class Reply:
    """The answer to one prompt."""

    ids: Tensor  # its tokens, `[token]`
    poses: Tensor  # a pose for every signal token among them: rotations of joints, `[n, joint, 3, 3]`


@torch.no_grad()
def reply(
    model: PoseLlava,
    inputs: Mapping[str, Tensor],
    tokens: int,
    method: str = "prompt-lookup",
    seed: int = 0,
    temperature: float = 0.7,
    **how: Any,
) -> tuple[list[Reply], Any]:
    """Answer prompts.

    Args:
        model: The model.
        inputs: `input_ids` and `attention_mask`, padded on the left, and `pixel_values`.
        tokens: New tokens.
        method: A method of mmspec.
        seed: Under an invariant method it decides text and poses.
        temperature: Of the text.
        **how: `drafter`, `k`, `shape` … of `decoder_for`.

    Returns:
        A reply for every prompt, and the report.
    """
    decoder, states = decoder_for(model, method, hidden=[FINAL], **how), UnitStates()
    for state in decoder.rounds(inputs, tokens, seed=seed, warp=Warp.sampling(temperature)):
        states.step(state)
    replies = []
    for new, drawn_from in zip(state.output(), states.rows(), strict=True):
        replies.append(Reply(new, model.pose(drawn_from[new == model.signal])))
    return replies, state.report
