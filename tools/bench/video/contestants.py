"""Contestants that make clips without waiting for a player: all actions are known from the start.

The clock stops before frames are decoded to pixels, which takes equally long for all contestants.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.race import Run, Track
from mmspec.bench.timing import synchronize
from mmspec.core.decoder import Decoder
from mmspec.report.result import PLAIN
from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay
from mmspec_video.targets.denoiser import Cache
from mmspec_video.targets.frames import FramesTarget
from tools.bench.video.clips import Task


@dataclass(frozen=True)
class ClipMaker:
    """One way to make clips. Every call has a new drafter: nothing is remembered from clip to clip."""

    model: Any  # the transformer
    how: Mapping[str, Any] = field(default_factory=lambda: {"method": PLAIN})  # the method and its options
    cache: Cache = "exact"  # the cache option of denoising models

    def decoder(self) -> Decoder:
        """A new decoder."""
        decoder = decoder_for(self.model, **decoder_arguments(self.how))
        if isinstance(decoder.target, FramesTarget):
            decoder.target.denoiser = replace(decoder.target.denoiser, cache=self.cache)
        return decoder

    def play(self, task: Task) -> FramePlay | TokenPlay:
        """A new play of a task."""
        decoder = self.decoder()
        kind = FramePlay if isinstance(decoder.target, FramesTarget) else TokenPlay
        return kind(decoder, task.first, task.before, task.actions.shape[1], task.seed)

    def __call__(self, task: Task) -> Run:
        play, device = self.play(task), str(task.first.device)
        synchronize(device)
        began = time.perf_counter()
        play.act(task.actions)
        frames = torch.cat([play.frame() for _ in range(task.actions.shape[1])])
        synchronize(device)
        return Run(time.perf_counter() - began, [frames.cpu()], play.report)


def same_frames(own: Tensor, other: Tensor) -> float:
    """Share of equal frames `[n, …]`: codes exactly, latents up to the rounding of another batch size."""
    if not own.is_floating_point():
        return float((own == other).flatten(1).all(1).float().mean())
    return float(torch.isclose(own, other, rtol=1e-3, atol=1e-3).flatten(1).all(1).float().mean())


def same_clips(own: Track, other: Track) -> float:
    """Mean of `same_frames` over all runs of two contestants."""
    both = zip(own.every, other.every, strict=True)
    shares = [same_frames(a.units[0], b.units[0]) for a, b in both]
    return round(sum(shares) / len(shares), 4)
