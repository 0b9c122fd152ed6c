"""Autoencoders with random weights for tiny worlds, between 8 × 8 pixels and 4 × 4 codes or latents."""

import torch
from diffusers import AutoencoderKL

from mmspec.kits.pictures.models.vq import LlamaGenVQ


def tiny_vq(codes: int = 10) -> LlamaGenVQ:
    """A VQ."""
    torch.manual_seed(0)
    sizes = dict(ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)
    return LlamaGenVQ(codes, **sizes).eval()


def tiny_vae(channels: int = 8) -> AutoencoderKL:
    """An autoencoder whose latents are moved and scaled."""
    torch.manual_seed(0)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 32),
        latent_channels=channels,
        sample_size=8,
        scaling_factor=1.5,
        shift_factor=0.1,
    ).eval()
