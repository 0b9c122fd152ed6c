"""What a call of `NextFramePipeline` returns."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.utils import BaseOutput
from torch import Tensor

from mmspec.core.report import Report
from mmspec_video.clips import save_clip


@dataclass
class NextFrameOutput(BaseOutput):
    """What a call made.

    Attributes:
        frames: As `output_type` says: `frames[row][i]` PIL pictures, numbers in [0, 1] as `[row, n, height, width, 3]`
            (`np`) or `[row, n, 3, height, width]` (`pt`), or what the transformer made, `[row, n, …]` (`latent`).
        report: Counts and times. Units are codes and actions of models of codes, and actions of the others.
        actions: `[row, n]` int64: what led to each frame.
        discarded: Frames that were made ahead of their time, for actions that did not come.
        fps: Frames a second, for `save`.
    """

    frames: Any
    report: Report
    actions: Tensor
    discarded: int = 0
    fps: int = field(default=20, repr=False)

    def save(self, path: str | Path, row: int = 0, fps: int | None = None) -> Path:
        """Write a row as GIF or MP4; see `mmspec_video.clips.save_clip`.

        Raises:
            ValueError: The frames are latents, or it cannot be written there.
        """
        frames = self.frames[row]
        if not isinstance(frames, list):
            shown = torch.as_tensor(frames)
            if shown.dim() != 4 or 3 not in (shown.shape[1], shown.shape[-1]):
                raise ValueError("latents are no pictures: ask for output_type='pil', 'np' or 'pt'")
            shown = shown if shown.shape[-1] == 3 else shown.permute(0, 2, 3, 1)
            frames = VaeImageProcessor.numpy_to_pil(shown.cpu().numpy())
        return save_clip(frames, path, self.fps if fps is None else fps)
