"""A model for a GPU: 310 million random weights, frames per second in four steps.

Next-Frame Diffusion (arXiv 2506.01380, table 1) reports 31 on an A100 with a key cache. Its frames of 384 × 224 pixels
are latents of 28 × 48 here, which are 336 cells; the values of weights do not affect speed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mmspec.bench.race import Run, relay
from mmspec.bench.rows import row_of
from mmspec.report.result import PLAIN, Row
from mmspec_video.models.next_frame import NextFrameDiT
from tools.bench.core.shapes import FRAME_SIZE, FRAMES
from tools.bench.video.clips import Task
from tools.bench.video.contestants import ClipMaker
from tools.bench.video.settings import STREAMING

SETTING = "310 million random weights, 4 steps"
NEW, REPEATS = 64, 4
CALLS = 2 * (1 + REPEATS)


@torch.no_grad()
def large(
    device: str, tick: Callable[[], None], size: str = FRAME_SIZE, shape: Mapping[str, Any] = FRAMES, new: int = NEW
) -> list[Row]:
    """Rows of plain decoding with the exact and with the streaming cache.

    Args:
        device: A GPU.
        tick: Called after every call of a contestant.
        size: A size of `NextFrameDiT`.
        shape: Further arguments of `NextFrameDiT`.
        new: Frames of a call; the window is full from the start.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = NextFrameDiT.of_size(size, **shape).eval()
        first = torch.randn(1, model.window - 1, *model.frame_shape)
        none = torch.zeros(1, model.window - 2, dtype=torch.int64)
        actions = torch.arange(new)[None] % shape["actions"]
    task = Task(first, none, actions, first[0, -1], first[0], 0)

    def in_half(maker: ClipMaker) -> Callable[[Task], Run]:
        def call(task: Task) -> Run:
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                return maker(task)

        return call

    makers = {PLAIN: ClipMaker(model), STREAMING: ClipMaker(model, cache="streaming")}
    contestants = {name: in_half(maker) for name, maker in makers.items()}
    tracks = relay(contestants, [[task]] * REPEATS, [task], tick=tick)
    return [
        row_of(tracks[name], tracks[PLAIN], method=name, setting=SETTING, options={"cache": maker.cache})
        for name, maker in makers.items()
    ]
