"""The convolutional halves of the VQ tokenizer, with VQGAN's blocks under LlamaGen's names."""

from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def norm(channels: int) -> nn.GroupNorm:
    """32 groups."""
    return nn.GroupNorm(32, channels, eps=1e-6)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = norm(outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """One head over all cells."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        query, key, value = (part(h).flatten(2).transpose(1, 2)[:, None] for part in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(query, key, value)[:, 0].transpose(1, 2).unflatten(2, x.shape[2:])
        return x + self.proj_out(seen)


class Downsample(nn.Module):
    """Halves a picture; pads on the right and below only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles a picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def level(inner: int, outer: int, blocks: int, attention: bool, name: str, resample: nn.Module | None) -> nn.Module:
    """Residual blocks, each with attention behind it if wanted, then a resampling."""
    made: Any = nn.Module()
    made.res = nn.ModuleList(Residual(inner if i == 0 else outer, outer) for i in range(blocks))
    made.attn = nn.ModuleList(Attention(outer) for _ in range(blocks if attention else 0))
    if resample is not None:
        setattr(made, name, resample)
    return made


def through(made: Any, x: Tensor) -> Tensor:
    """The blocks of a level."""
    for i, block in enumerate(made.res):
        x = block(x)
        if len(made.attn):
            x = made.attn[i](x)
    return x


def middle(channels: int) -> nn.ModuleList:
    """What stands between levels and latents."""
    return nn.ModuleList([Residual(channels, channels), Attention(channels), Residual(channels, channels)])


class Encoder(nn.Module):
    """Picture to latents."""

    def __init__(self, ch: int, multiples: tuple[int, ...], blocks: int, z_channels: int) -> None:
        super().__init__()
        widths, last = [ch, *(ch * m for m in multiples)], len(multiples) - 1
        self.conv_in = nn.Conv2d(3, ch, 3, padding=1)
        self.conv_blocks: Any = nn.ModuleList(
            level(a, b, blocks, i == last, "downsample", Downsample(b) if i != last else None)
            for i, (a, b) in enumerate(pairwise(widths))
        )
        self.mid = middle(widths[-1])
        self.norm_out = norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], z_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for made in self.conv_blocks:
            x = through(made, x)
            x = made.downsample(x) if hasattr(made, "downsample") else x
        for block in self.mid:
            x = block(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    """Latents to picture; the first level is the deepest."""

    def __init__(self, ch: int, multiples: tuple[int, ...], blocks: int, z_channels: int) -> None:
        super().__init__()
        widths = [ch * m for m in reversed(multiples)]
        widths, last = [widths[0], *widths], len(multiples) - 1
        self.conv_in = nn.Conv2d(z_channels, widths[0], 3, padding=1)
        self.mid = middle(widths[0])
        self.conv_blocks: Any = nn.ModuleList(
            level(a, b, blocks + 1, i == 0, "upsample", Upsample(b) if i != last else None)
            for i, (a, b) in enumerate(pairwise(widths))
        )
        self.norm_out = norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.conv_in(z)
        for block in self.mid:
            x = block(x)
        for made in self.conv_blocks:
            x = through(made, x)
            x = made.upsample(x) if hasattr(made, "upsample") else x
        return self.conv_out(F.silu(self.norm_out(x)))
