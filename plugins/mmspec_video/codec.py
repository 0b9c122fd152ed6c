"""Between pixels and the codes or latents that a transformer reads."""

from dataclasses import dataclass
from typing import Any, Protocol

from diffusers import AutoencoderKL
from torch import Tensor

from mmspec.hosts.devices import awake
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_video.models.oasis_vae import SCALE, OasisVAE
from mmspec_video.models.token_world import TokenWorldModel


class Codec(Protocol):
    """Encoder and decoder; frames are `[n, 3, height, width]` in [-1, 1]."""

    def encode(self, frames: Tensor) -> Tensor:
        """Codes or latents `[n, …]` of frames."""

    def decode(self, encoded: Tensor) -> Tensor:
        """Frames of codes or latents."""


@dataclass(frozen=True)
class Codes:
    """A VQ's codes, `[n, cell]` in raster order."""

    vae: LlamaGenVQ
    rows: int  # rows of a frame's codes

    def encode(self, frames: Tensor) -> Tensor:
        return self.vae.encode(frames.to(self.vae.dtype)).codes.flatten(1)

    def decode(self, encoded: Tensor) -> Tensor:
        with awake(self.vae, self.vae.quantize.embedding):  # the codebook is read, not called
            return self.vae.decode(encoded.unflatten(1, (self.rows, -1)))


@dataclass(frozen=True)
class KLLatents:
    """The means of diffusers' `AutoencoderKL`, shifted and scaled as its config says: `[n, channel, row, column]`."""

    vae: AutoencoderKL

    def encode(self, frames: Tensor) -> Tensor:
        means = self.vae.encode(frames.to(self.vae.dtype)).latent_dist.mode().float()
        return (means - self._shift) * self.vae.config.scaling_factor

    def decode(self, encoded: Tensor) -> Tensor:
        latents = encoded / self.vae.config.scaling_factor + self._shift
        return self.vae.decode(latents.to(self.vae.dtype), return_dict=False)[0]

    @property
    def _shift(self) -> float:
        return self.vae.config.shift_factor or 0.0


@dataclass(frozen=True)
class OasisLatents:
    """open-oasis's latents, `[n, channel, row, column]`."""

    vae: OasisVAE  # the autoencoder

    def encode(self, frames: Tensor) -> Tensor:
        means = self.vae.posterior_mean(frames.to(self.vae.dtype))
        return (means.transpose(1, 2).unflatten(2, self.vae.grid) * SCALE).float()

    def decode(self, encoded: Tensor) -> Tensor:
        return self.vae.decode((encoded.to(self.vae.dtype) / SCALE).flatten(2).transpose(1, 2))


def codec_of(transformer: Any, vae: Any) -> Codec:
    """The codec of a pipeline's parts."""
    if isinstance(transformer, TokenWorldModel):
        if not isinstance(vae, LlamaGenVQ):
            raise ValueError(f"frames of codes want a LlamaGenVQ, and not {type(vae).__name__}, which has no codes")
        known, codes = transformer.config.vocab_size, vae.config.codebook_size
        if known != codes:
            raise ValueError(f"these parts do not fit each other: the transformer knows {known} codes, the VQ {codes}")
        return Codes(vae, transformer.config.rows)
    published = isinstance(vae, OasisVAE)
    if not published and not isinstance(vae, AutoencoderKL):
        raise ValueError(f"denoised frames want an AutoencoderKL or an OasisVAE, and not {type(vae).__name__}")
    channels = vae.config.latent_dim if published else vae.config.latent_channels
    if channels != transformer.frame_shape[0]:
        own = transformer.frame_shape[0]
        raise ValueError(f"these parts do not fit each other: latents of {own} channels, and of {channels}")
    if published and vae.grid != tuple(transformer.frame_shape[1:]):
        own, other = ("{} × {}".format(*size) for size in (transformer.frame_shape[1:], vae.grid))
        raise ValueError(f"these parts do not fit each other: frames of {own} latents, and of {other}")
    return OasisLatents(vae) if published else KLLatents(vae)


def frame_size(transformer: Any, vae: Any) -> tuple[int, int]:
    if isinstance(transformer, TokenWorldModel):
        return transformer.config.rows * vae.factor, transformer.config.columns * vae.factor
    height, width = transformer.frame_shape[1:]
    factor = vae.config.patch_size if isinstance(vae, OasisVAE) else 2 ** (len(vae.config.block_out_channels) - 1)
    return height * factor, width * factor
