"""LlamaGen's VQ tokenizer: a convolutional autoencoder whose latent cells are entries of a normalised codebook.

After VQGAN (Esser et al., arXiv 2012.09841) with LlamaGen's small normalised codes (2406.06525). Encoder and decoder
are those of diffusers' `AutoencoderKL`, so weights have diffusers' names; `from_official` renames published files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import Decoder, Encoder
from torch import Tensor, nn

from mmspec.kits.pictures.models.local import LocalEncoder
from mmspec.kits.pictures.models.official import Source, from_official
from mmspec.kits.pictures.models.vq_names import renamed, vq_sizes

LEFT_OUT = ("codebook_used",)
"""Parts of keys of entries that are no weights."""


@dataclass(frozen=True)
class Quantised:
    """Quantised latents."""

    latents: Tensor  # `[batch, width, row, column]`; straight-through gradients
    codes: Tensor  # `[batch, row, column]` int64
    loss: Tensor  # codebook and commitment loss; a scalar


class Codebook(nn.Module):
    """Nearest entry of a codebook on the unit sphere.

    Args:
        entries: Number of codes.
        width: Width of an entry.
        commitment: Weight of the encoder's commitment loss.
    """

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
    """Pictures to codes and back.

    Args:
        codebook_size: Number of codes.
        codebook_embed_dim: Width of a codebook entry.
        ch: Channels of the first level; a multiple of 32.
        encoder_ch_mult: Multiples of `ch`, level by level; each level but the last halves the picture.
        decoder_ch_mult: The same for the decoder.
        z_channels: Channels of the latents before the codebook.
        num_res_blocks: Residual blocks of an encoder level; a decoder level has one more. A local encoder has none.
        local: Use the encoder that sees the surroundings of a cell only (`models.local`) instead of the published one.
    """

    @register_to_config
    def __init__(
        self,
        codebook_size: int = 16384,
        codebook_embed_dim: int = 8,
        ch: int = 128,
        encoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4),
        decoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4),
        z_channels: int = 256,
        num_res_blocks: int = 2,
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
        """The model of a published file, or of its contents.

        Args:
            source: Path or mapping; see `mmspec.kits.pictures.models.official`.
            **config: Arguments of the class that override those that the shapes say.

        Raises:
            ValueError: The weights do not fit.
        """
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
        """Pictures of latents on the codebook."""
        return self.decoder(self.post_quant_conv(latents))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Quantised]:
        """Reconstruction and codes."""
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
