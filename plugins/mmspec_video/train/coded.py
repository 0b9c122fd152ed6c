"""Episodes as codes, and random clips of them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.kits.pictures.data import pixels
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.training.work import cached
from mmspec_video.train.world import World

CODES_FILE = "codes.pt"
PART = 128
"""Frames that are encoded at once."""


@dataclass(frozen=True)
class CodedEpisodes:
    """Codes and actions of all episodes, and which episodes clips are taken from.

    Attributes:
        codes: `[episode, frame, cell]` int16.
        actions: `[episode, frame]` int64: action `i` leads from frame `i` to frame `i + 1`.
        chosen: `[episode]` int64: numbers of the episodes that clips are taken from.
    """

    codes: Tensor
    actions: Tensor
    chosen: Tensor

    def batch(self, rows: int, frames: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
        """Random clips: codes `[row, frame, cell]` int64, and the action after each frame `[row, frame]`."""
        g = torch.Generator().manual_seed(seed)
        episode = self.chosen[torch.randint(len(self.chosen), (rows, 1), generator=g)]
        first = torch.randint(self.codes.shape[1] - frames + 1, (rows, 1), generator=g)
        at = first + torch.arange(frames)
        return self.codes[episode, at].long().to(device), self.actions[episode, at].to(device)


@torch.no_grad()
def encoded(vq: LlamaGenVQ, world: World, folder: Path, device: str) -> CodedEpisodes:
    """The codes of all frames, cached in the VQ's folder; clips are taken from training episodes."""

    def encode() -> Tensor:
        vq.eval()
        parts = world.frames.flatten(0, 1).split(PART)
        codes = torch.cat([vq.encode(pixels(part).to(device)).codes.flatten(1).cpu() for part in parts])
        return codes.to(torch.int16).unflatten(0, world.frames.shape[:2])

    codes = cached(folder / CODES_FILE, (*vq.state_dict().values(), world.frames), encode)
    return CodedEpisodes(codes, world.actions, (~world.held_out).nonzero()[:, 0])
