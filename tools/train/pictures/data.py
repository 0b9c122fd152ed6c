"""Pictures and captions of a folder: `emoji64.npz` (`images`, uint8 `[n, side, side, 3]`) and `captions.txt`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HELD_OUT = 20
"""One of so many pictures is held out."""


@dataclass(frozen=True)
class Pictures:
    images: Tensor  # `[n, 3, side, side]` uint8
    captions: list[str]  # one caption per picture

    @property
    def held_out(self) -> Tensor:
        """Which pictures are held out: `[n]` bool."""
        return torch.arange(len(self.images)) % HELD_OUT == HELD_OUT - 1


def load(folder: Path) -> Pictures:
    """Read a folder.

    Raises:
        ValueError: A file is missing, or there are not as many captions as pictures.
    """
    files = folder / "emoji64.npz", folder / "captions.txt"
    for file in files:
        if not file.is_file():
            raise ValueError(f"there is no {file}; --data names a folder with emoji64.npz and captions.txt")
    with np.load(files[0], allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).contiguous()
    captions = files[1].read_text(encoding="utf-8").splitlines()
    if len(captions) != len(images):
        raise ValueError(f"{len(captions)} captions for {len(images)} pictures in {folder}")
    return Pictures(images, captions)


def pixels(images: Tensor) -> Tensor:
    """Pictures as float32 in [-1, 1], of uint8."""
    return images.float() / 127.5 - 1
