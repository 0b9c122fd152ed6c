"""An encoder with a small receptive field, for VQ tokenizers of simple pictures; ours, not published.

The published encoder normalises and attends over the whole picture, so that blank cells have many codes, which depend
on the rest of the picture, and a transformer has to predict them. Here a cell depends on at most eight pixels beyond
itself, edges are repeated, and every position is normalised by itself: all blank cells have one code, which is easy to
predict.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ChannelNorm(nn.Module):
    """Root-mean-square norm over the channels of every position."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6)
        return (wide * scale).type_as(x) * self.weight[:, None, None]


class LocalBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = ChannelNorm(channels), _convolution(channels, channels)
        self.norm2, self.conv2 = ChannelNorm(channels), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


class LocalEncoder(nn.Module):
    """Picture to latents, through levels of `ch` times `multiples` channels; each level but the last halves the
    picture.
    """

    def __init__(self, ch: int, multiples: tuple[int, ...], z_channels: int) -> None:
        super().__init__()
        widths = [ch * m for m in multiples]
        layers: list[nn.Module] = [_convolution(3, widths[0]), LocalBlock(widths[0])]
        for before, after in pairwise(widths):
            layers += [nn.PixelUnshuffle(2), nn.Conv2d(4 * before, after, 1), LocalBlock(after)]
        self.layers = nn.Sequential(*layers, ChannelNorm(widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], z_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _convolution(inner: int, outer: int) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, 3, padding=1, padding_mode="replicate")
