"""The output of a call of `NextFramePipeline`."""

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
    """New frames and how they were made."""

    # PIL pictures `frames[row][i]`, values in [0, 1] as `[row, n, height, width, 3]` (output type `np`) or `[row, n, 3,
    # height, width]` (`pt`), or the transformer's codes or latents `[row, n, …]` (`latent`)
    frames: Any
    report: Report  # counts and times. Units are codes and actions of a token model, and actions of a denoising model.
    actions: Tensor  # `[row, n]` int64: the action that led to each frame
    discarded: int = 0  # frames that were made ahead for guessed actions that the player did not take
    fps: int = field(default=20, repr=False)  # frames per second, for `save`

    def save(self, path: str | Path, row: int = 0, fps: int | None = None) -> Path:
        """Write a row as GIF or MP4; see `mmspec_video.clips.save_clip`.

        Raises:
            ValueError: The frames are latents, or the file cannot be written.
        """
        frames = self.frames[row]
        if not isinstance(frames, list):
            shown = torch.as_tensor(frames)
            if shown.dim() != 4 or 3 not in (shown.shape[1], shown.shape[-1]):
                raise ValueError("latents are no pictures: ask for output_type='pil', 'np' or 'pt'")
            shown = shown if shown.shape[-1] == 3 else shown.permute(0, 2, 3, 1)
            frames = VaeImageProcessor.numpy_to_pil(shown.cpu().numpy())
        return save_clip(frames, path, self.fps if fps is None else fps)
