"""Video models of published sizes for `mmspec bench core`; weights are random."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.core.shape import Shape, Workload
from mmspec_video.models.next_frame import SIZES, NextFrameDiT
from mmspec_video.targets.tree import FramePrompt

SIZE = "310m"
SHAPE: Mapping[str, Any] = {
    "channels": 16, "height": 28, "width": 48, "actions": 4, "patch": 2, "frames": 32, "steps": 4
}  # fmt: skip
CONTEXT = SHAPE["frames"] // 2
"""Frames of a prompt: while all frames fit the window, their keys stay in the cache."""

SHAPES = (
    Shape(
        "nfd-310m",
        "mmspec_video.shapes:next_frame",
        {**SIZES[SIZE], **SHAPE},
        {**SIZES["tiny"], "channels": 4, "height": 4, "width": 4},
        contexts=(CONTEXT,),
        nodes=(1,),
        generates=False,
    ),
)
"""Next-Frame Diffusion (arXiv 2506.01380): a node is a frame, made in several passes of the network."""


def next_frame(device: torch.device, dtype: torch.dtype, **numbers: Any) -> Workload:
    """The transformer with random float32 weights; a prompt is some frames, and actions come from a player."""
    torch.manual_seed(0)
    with torch.device(device):
        model = NextFrameDiT(**numbers).eval().requires_grad_(False)
    config = model.config
    cells = (config.height // config.patch) * (config.width // config.patch)

    def prompt(rows: int, context: int) -> FramePrompt:
        frames = torch.zeros(rows, context, *model.frame_shape, device=device)
        unknown = torch.full((rows, context), config.actions, device=device)
        return FramePrompt(frames, unknown, unknown.new_zeros(rows))

    def truth(rows: int) -> Tensor:
        return torch.zeros(rows, 1, dtype=torch.int64, device=device)

    slot = 2 * config.depth * config.dim * cells
    half = None if dtype == torch.float32 else dtype
    return Workload(model, prompt, slot, units=cells, passes=config.steps, autocast=half, truth=truth)
