"""LlamaGen's VQ tokenizer: a convolutional autoencoder whose latent cells are entries of a normalised codebook.

After VQGAN (Esser et al., arXiv 2012.09841) with LlamaGen's small normalised codes (2406.06525). Encoder and decoder
are diffusers' own, of `AutoencoderKL`, so weights have diffusers' names; `from_official` renames published files, whose
blocks are called `res` and `attn`, and whose projections of attention are convolutions over one pixel.

`LocalEncoder`, for simple pictures, is ours and not published. The published encoder normalises and attends over the
whole picture, so that blank cells have many codes, which depend on the rest of the picture, and a transformer has to
predict them. In ours a cell depends on at most eight pixels beyond itself, edges are repeated, and every position is
normalised by itself: all blank cells have one code, which is easy to predict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import Decoder, Encoder
from torch import Tensor, nn

from mmspec.kits.pictures.models.official import Source, count_in, from_official, renamed_by, shape_in


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


LEFT_OUT = ("codebook_used",)  # parts of keys of entries that are no weights


@dataclass(frozen=True)
class Quantised:
    latents: Tensor  # `[batch, width, row, column]`; straight-through gradients
    codes: Tensor  # `[batch, row, column]` int64
    loss: Tensor  # codebook and commitment loss; a scalar


class Codebook(nn.Module):
    """Nearest entry of a codebook on the unit sphere."""

    def __init__(self, entries: int, width: int, commitment: float = 0.25) -> None:
        super().__init__()
        self.commitment = commitment
        self.embedding = nn.Embedding(entries, width)
        nn.init.uniform_(self.embedding.weight, -1.0 / entries, 1.0 / entries)

    @property
    def entries(self) -> Tensor:
        """The codebook as unit vectors: `[code, width]`."""
        return F.normalize(self.embedding.weight, dim=-1)

    def forward(self, z: Tensor) -> Quantised:
        cells = F.normalize(z.permute(0, 2, 3, 1), dim=-1)  # [batch, row, column, width]
        entries = self.entries
        codes = (cells @ entries.T).argmax(-1)  # nearest on the sphere: largest cosine
        chosen = entries[codes]
        loss = (chosen - cells.detach()).square().mean() + self.commitment * (chosen.detach() - cells).square().mean()
        through = cells + (chosen - cells).detach()
        return Quantised(through.permute(0, 3, 1, 2), codes, loss)

    def lookup(self, codes: Tensor) -> Tensor:
        """Latents `[batch, width, row, column]` of codes `[batch, row, column]`."""
        return self.entries[codes].permute(0, 3, 1, 2)


class LlamaGenVQ(ModelMixin, ConfigMixin):
    @register_to_config
    def __init__(
        self,
        codebook_size: int = 16384,
        *,
        codebook_embed_dim: int = 8,
        ch: int = 128,  # channels of the first level; a multiple of 32
        # multiples of `ch`, level by level; each level but the last halves the picture
        encoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4),
        decoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4),
        z_channels: int = 256,  # channels of the latents before the codebook
        num_res_blocks: int = 2,  # of an encoder level; a decoder level has one more, a local encoder none
        # `LocalEncoder`, not the published one
        local: bool = False,
    ) -> None:
        super().__init__()
        self.encoder: nn.Module = (
            LocalEncoder(ch, tuple(encoder_ch_mult), z_channels)
            if local
            else _encoder([ch * m for m in encoder_ch_mult], z_channels, num_res_blocks)
        )
        self.decoder: nn.Module = _decoder([ch * m for m in decoder_ch_mult], z_channels, num_res_blocks)
        self.quantize = Codebook(codebook_size, codebook_embed_dim)
        self.quant_conv = nn.Conv2d(z_channels, codebook_embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(codebook_embed_dim, z_channels, 1)

    @classmethod
    def from_official(cls, source: Source, **config: Any) -> Self:
        """The model of a published file, or of its contents; `config` overrides what the shapes say."""
        return from_official(lambda state: cls(**{**vq_sizes(state), **config}), source, LEFT_OUT, renamed=renamed)

    @property
    def factor(self) -> int:
        """Pixels per code, along a side."""
        return 2 ** (len(self.config.encoder_ch_mult) - 1)

    def encode(self, pictures: Tensor) -> Quantised:
        """Codes of pictures `[batch, 3, height, width]` in [-1, 1]."""
        return self.quantize(self.quant_conv(self.encoder(pictures)))

    def decode(self, codes: Tensor) -> Tensor:
        """Pictures `[batch, 3, height, width]`, about [-1, 1], of codes `[batch, row, column]`."""
        return self.decode_latents(self.quantize.lookup(codes))

    def decode_latents(self, latents: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(latents))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Quantised]:
        quantised = self.encode(pictures)
        return self.decode_latents(quantised.latents), quantised


def _encoder(widths: Sequence[int], z_channels: int, blocks: int) -> Encoder:
    """Picture to latents; the deepest level attends."""
    return Encoder(
        out_channels=z_channels,
        down_block_types=(*["DownEncoderBlock2D"] * (len(widths) - 1), "AttnDownEncoderBlock2D"),
        block_out_channels=tuple(widths),
        layers_per_block=blocks,
        double_z=False,
    )


def _decoder(widths: Sequence[int], z_channels: int, blocks: int) -> Decoder:
    """Latents to picture; the deepest level comes first, and attends."""
    return Decoder(
        in_channels=z_channels,
        up_block_types=("AttnUpDecoderBlock2D", *["UpDecoderBlock2D"] * (len(widths) - 1)),
        block_out_channels=tuple(widths),
        layers_per_block=blocks,
    )


#: Patterns of LlamaGen's names, and what diffusers has in their place; applied in this order.
NAMES = (
    (r"^encoder\.conv_blocks\.", "encoder.down_blocks."),
    (r"^decoder\.conv_blocks\.", "decoder.up_blocks."),
    (r"\.(down|up)sample\.", r".\1samplers.0."),
    (r"\.res\.", ".resnets."),
    (r"\.attn\.", ".attentions."),
    (r"\.mid\.0\.", ".mid_block.resnets.0."),
    (r"\.mid\.1\.", ".mid_block.attentions.0."),
    (r"\.mid\.2\.", ".mid_block.resnets.1."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.norm_out\.", ".conv_norm_out."),
    (r"(\.attentions\.\d+)\.norm\.", r"\1.group_norm."),
    (r"(\.attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
    (r"(\.attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
)


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a published file under diffusers' names; attention projections become matrices."""
    found = {}
    for published, value in state.items():
        name = renamed_by(published, NAMES)
        projects = ".attentions." in name and value.shape[2:] == (1, 1)
        found[name] = value[:, :, 0, 0] if projects else value
    return found


def vq_sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of `LlamaGenVQ`, from the shapes of a published file's weights."""
    if "quantize.embedding.weight" not in state or "encoder.conv_in.weight" not in state:
        raise ValueError("these are no weights of LlamaGen's VQ: there is no quantize.embedding or no encoder.conv_in")
    entries, width = shape_in(state, "quantize.embedding.weight", 2)
    channels = shape_in(state, "encoder.conv_in.weight", 4)[0]
    sizes: dict[str, Any] = {"codebook_size": entries, "codebook_embed_dim": width, "ch": channels}
    for half in ("encoder", "decoder"):
        levels = range(count_in(state, f"{half}.conv_blocks."))
        widths = [shape_in(state, f"{half}.conv_blocks.{i}.res.0.conv1.weight", 4)[0] for i in levels]
        outwards = widths if half == "encoder" else widths[::-1]  # a decoder's first level is the deepest
        sizes[f"{half}_ch_mult"] = tuple(size // channels for size in outwards)
    sizes["num_res_blocks"] = count_in(state, "encoder.conv_blocks.0.res.")
    return sizes | {"z_channels": shape_in(state, "quant_conv.weight", 4)[1]}
