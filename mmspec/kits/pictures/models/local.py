"""An encoder whose codes say what stands around them, and nothing of the rest of the picture; a decoder to match.

Ours, not published. The published encoder normalises over the whole picture, attends over it and sees far: what is
blank then has many codes, which tell of the rest, and a transformer has to guess them before it knows what the picture
shows. Here a cell sees eight pixels beyond itself, edges are repeated, and every place is normalised by itself: all
blank cells have one code, and a transformer finds it easy. The published decoder normalises over the picture, too, and
takes long to learn colours that way.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlaceNorm(nn.Module):
    """Root-mean-square norm over the channels of every place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6)
        return (wide * scale).type_as(x) * self.weight[:, None, None]


class Local(nn.Module):
    """A convolution that sees its neighbours and one that does not, beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = PlaceNorm(channels), _seeing(channels, channels)
        self.norm2, self.conv2 = PlaceNorm(channels), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


class LocalEncoder(nn.Module):
    """Picture to latents.

    Args:
        ch: Channels of the first level.
        multiples: Of `ch`, level by level; each level but the last halves the picture.
        z_channels: Channels of the latents.
    """

    def __init__(self, ch: int, multiples: tuple[int, ...], z_channels: int) -> None:
        super().__init__()
        widths = [ch * m for m in multiples]
        layers: list[nn.Module] = [_seeing(3, widths[0]), Local(widths[0])]
        for before, after in pairwise(widths):
            layers += [nn.PixelUnshuffle(2), nn.Conv2d(4 * before, after, 1), Local(after)]
        self.layers = nn.Sequential(*layers, PlaceNorm(widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], z_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class LocalDecoder(nn.Module):
    """Latents to picture: what a cell shows depends on the cells around it.

    Args:
        ch: Channels of the first level.
        multiples: Of `ch`, level by level; each level but the last doubles the picture of the one behind it.
        z_channels: Channels of the latents.
    """

    def __init__(self, ch: int, multiples: tuple[int, ...], z_channels: int) -> None:
        super().__init__()
        widths = [ch * m for m in reversed(multiples)]
        layers: list[nn.Module] = [_seeing(z_channels, widths[0]), Local(widths[0])]
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, 4 * after, 1), nn.PixelShuffle(2), Local(after)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], 3, 1))

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z)


def _seeing(inner: int, outer: int) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, 3, padding=1, padding_mode="replicate")
