"""Who makes clips: frames of codes, and denoised frames with nobody to wait for; all actions are known at once.

The clock stops before frames become pixels: that takes everybody as long.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.bench.limits import synchronize
from mmspec.bench.memory import Footprint, footprint
from mmspec.bench.race import Run
from mmspec.core.decoder import Decoder
from mmspec.report.result import PLAIN
from mmspec_video.bench.clips import Task
from mmspec_video.bench.settings import given
from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay
from mmspec_video.targets.denoiser import Cache
from mmspec_video.targets.token_frames import TokenFramesTarget

FEW = 3
"""Frames in which memory is watched: the profiler is slow."""


@dataclass(frozen=True)
class Maker:
    """One way to make clips. A call is the drafter's first: nothing is remembered from clip to clip.

    Attributes:
        model: The transformer.
        how: A method and its options.
        cache: Of denoising models.
    """

    model: Any
    how: Mapping[str, Any] = field(default_factory=lambda: {"method": PLAIN})
    cache: Cache = "exact"

    def decoder(self) -> Decoder:
        """A new one."""
        made = decoder_for(self.model, **given(self.how))
        target: Any = made.target
        if not isinstance(target, TokenFramesTarget):
            target.denoiser = replace(target.denoiser, cache=self.cache)
        return made

    def play(self, task: Task) -> FramePlay | TokenPlay:
        """A new play, at its beginning."""
        decoder = self.decoder()
        kind = TokenPlay if isinstance(decoder.target, TokenFramesTarget) else FramePlay
        return kind(decoder, task.first, task.before, task.actions.shape[1], task.seed)

    def __call__(self, task: Task) -> Run:
        play, device = self.play(task), str(task.first.device)
        synchronize(device)
        began = time.perf_counter()
        play.act(task.actions)
        made = torch.cat([play.frame() for _ in range(task.actions.shape[1])])
        synchronize(device)
        return Run(time.perf_counter() - began, [made.cpu()], play.report)

    def memory(self, task: Task) -> Footprint:
        """What the transformer and a call's first frames take."""
        few = replace(task, actions=task.actions[:, :FEW])
        return footprint(lambda: self(few), [self.model], str(task.first.device))


def same_frames(own: Tensor, other: Tensor) -> float:
    """Share of the frames `[n, …]` that are the other's: codes exactly, numbers but for the arithmetic of a batch."""
    if not own.is_floating_point():
        return float((own == other).flatten(1).all(1).float().mean())
    return float(torch.isclose(own, other, rtol=1e-3, atol=1e-3).flatten(1).all(1).float().mean())
