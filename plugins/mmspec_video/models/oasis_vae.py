"""Oasis's autoencoder: a vision transformer from patches to latents, and another one from latents to patches.

The weights have the keys of the published ViT-VAE-L/20 (open-oasis, 2024).
"""

from collections.abc import Mapping
from typing import Any, Self

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.kits.pictures.models.blocks import turn
from mmspec.kits.pictures.models.official import Source, count_in, from_official, shape_in
from mmspec_video.models.layers import EPS, Mlp, PatchEmbed, attention, pixel_rotary, unpatchified

SCALE = 0.07843137255  # scale from the autoencoder's latents to the transformer's, as published
HEADS = {1024: 16}  # width of the published autoencoder to its attention heads


class Attention(nn.Module):
    """Full attention among patches; half of a head's channels is rotated by position."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        query, key = (turn(t, rotary.expand(len(x), -1, -1, -1)) for t in (query, key))
        return self.proj(attention(query, key, value))


class VisionLayer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=EPS), Attention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=EPS), Mlp(dim, 4 * dim, approximate="none")

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), rotary)
        return x + self.mlp(self.norm2(x))


class OasisVAE(ModelMixin, ConfigMixin):
    """Frames to latents and back."""

    @register_to_config
    def __init__(
        self,
        latent_dim: int = 16,
        input_height: int = 360,  # of a frame, in pixels
        input_width: int = 640,
        patch_size: int = 20,  # pixels per latent, along a side
        *,
        enc_dim: int = 1024,
        enc_depth: int = 6,
        enc_heads: int = 16,
        dec_dim: int = 1024,
        dec_depth: int = 12,
        dec_heads: int = 16,
    ) -> None:
        super().__init__()
        rows, columns = input_height // patch_size, input_width // patch_size
        self.patch_embed = PatchEmbed(3, enc_dim, patch_size)
        self.encoder = nn.ModuleList(VisionLayer(enc_dim, enc_heads) for _ in range(enc_depth))
        self.enc_norm = nn.LayerNorm(enc_dim, eps=EPS)
        self.quant_conv = nn.Linear(enc_dim, 2 * latent_dim)
        self.post_quant_conv = nn.Linear(latent_dim, dec_dim)
        self.decoder = nn.ModuleList(VisionLayer(dec_dim, dec_heads) for _ in range(dec_depth))
        self.dec_norm = nn.LayerNorm(dec_dim, eps=EPS)
        self.predictor = nn.Linear(dec_dim, 3 * patch_size**2)
        # Not buffers: they stay float32 when the weights are cast.
        widths = enc_dim // enc_heads, dec_dim // dec_heads
        self.rotaries = [pixel_rotary(rows, columns, width, width // 8, rows * columns) for width in widths]

    @classmethod
    def from_official(cls, source: Source, **config: Any) -> Self:
        """The model with published weights, of a file or a mapping, and what they do not tell: `input_height`,
        `input_width`, and the heads of an unpublished size.
        """
        return from_official(lambda state: cls(**vae_sizes(state, config)), source)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of a frame's latents."""
        side = self.config.patch_size
        return self.config.input_height // side, self.config.input_width // side

    def posterior_mean(self, frames: Tensor) -> Tensor:
        """Posterior means `[n, cell, latent_dim]` in raster order of frames `[n, 3, height, width]` in [-1, 1]."""
        x = self.patch_embed(frames[:, None])[:, 0]
        for block in self.encoder:
            x = block(x, self.rotaries[0].to(x.device)[None])
        return self.quant_conv(self.enc_norm(x)).chunk(2, -1)[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Frames `[n, 3, height, width]`, about [-1, 1], of latents `[n, cell, latent_dim]`."""
        x = self.post_quant_conv(latents)
        for block in self.decoder:
            x = block(x, self.rotaries[1].to(x.device)[None])
        # The pixels of a patch are stored channel first: [3, row, column].
        side = self.config.patch_size
        pixels = self.predictor(self.dec_norm(x)).unflatten(-1, (3, -1)).transpose(-1, -2).flatten(-2)
        return unpatchified(pixels, self.grid[0], side)


def vae_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an autoencoder's weights under their published keys; the size of a frame is 360 × 640 unless
    `given` says otherwise.
    """
    if "patch_embed.proj.weight" not in state or "predictor.weight" not in state:
        raise ValueError("these are no weights of Oasis's autoencoder: there is no patch_embed or no predictor")
    sizes: dict[str, Any] = {"patch_size": shape_in(state, "patch_embed.proj.weight", 4)[-1]}
    sizes["latent_dim"] = shape_in(state, "post_quant_conv.weight", 2)[1]
    for short, half in (("enc", "encoder"), ("dec", "decoder")):
        width = shape_in(state, f"{short}_norm.weight", 1)[0]
        heads = given.get(f"{short}_heads", HEADS.get(width))
        if heads is None:
            raise ValueError(f"width {width} is no published size: say {short}_heads=")
        sizes |= {f"{short}_dim": width, f"{short}_heads": heads, f"{short}_depth": count_in(state, f"{half}.")}
    return sizes | dict(given)
