"""Episodes as codes or latents, and random clips of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.training.work import cached
from tools.train.pictures.data import pixels
from tools.train.video.world import World

CODED_FILE = "coded.pt"
PART = 32
"""Frames that are encoded at once."""


@dataclass(frozen=True)
class CodedEpisodes:
    """Coded frames and actions of all episodes, and which episodes clips are taken from."""

    frames: Tensor  # codes `[episode, frame, cell]` int16, or latents `[episode, frame, channel, row, column]` float16
    actions: Tensor  # `[episode, frame]` int64: action `i` leads from frame `i` to frame `i + 1`
    chosen: Tensor  # `[episode]` int64: numbers of the episodes that clips are taken from

    def batch(self, rows: int, frames: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
        """Random clips: codes int64 or latents float32, and the action after each frame `[row, frame]`."""
        g = torch.Generator().manual_seed(seed)
        episode = self.chosen[torch.randint(len(self.chosen), (rows, 1), generator=g)]
        first = torch.randint(self.frames.shape[1] - frames + 1, (rows, 1), generator=g)
        at = first + torch.arange(frames)
        wide = torch.float32 if self.frames.is_floating_point() else torch.int64
        return self.frames[episode, at].to(device, wide), self.actions[episode, at].to(device)


@torch.no_grad()
def encoded(
    encode: Callable[[Tensor], Tensor], model: nn.Module, world: World, folder: Path, device: str
) -> CodedEpisodes:
    """All frames, coded, each view once, and cached in the folder; clips are taken from training episodes.

    Args:
        encode: From frames `[n, 3, height, width]` in [-1, 1] to codes or latents `[n, …]`.
        model: The autoencoder, whose weights decide what comes out.
        world: The episodes.
        folder: The autoencoder's folder.
        device: Its device.
    """

    def coded() -> Tensor:
        distinct, number = np.unique(world.frames.flatten(0, 1).flatten(1).numpy(), axis=0, return_inverse=True)
        views = torch.from_numpy(distinct).unflatten(1, world.frames.shape[2:])
        parts = [encode(pixels(part).to(device)).cpu() for part in views.split(PART)]
        kept = torch.float16 if parts[0].is_floating_point() else torch.int16
        return torch.cat(parts).to(kept)[torch.from_numpy(number.reshape(-1))].unflatten(0, world.frames.shape[:2])

    model.eval()
    frames = cached(folder / CODED_FILE, (*model.state_dict().values(), world.frames), coded)
    return CodedEpisodes(frames, world.actions, (~world.held_out).nonzero()[:, 0])
