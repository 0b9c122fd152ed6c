"""Captions for picture transformers: a small text encoder, and the projection of any encoder's features.

The encoder has token and position embeddings and a few bidirectional blocks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn


class CaptionEncoder(ModelMixin, ConfigMixin):
    """The text encoder: features of captions of `length` tokens, padding included."""

    @register_to_config
    def __init__(
        self, vocab_size: int = 1024, length: int = 16, dim: int = 192, layers: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim)
        self.places = nn.Parameter(torch.randn(length, dim) * 0.02)
        block = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Features `[batch, length, dim]` of tokens `[batch, length]`, whose `mask` is False at padding; of padding
        only, all positions attend to each other, so that no row is empty.
        """
        padding = ~mask.bool() & mask.bool().any(1, keepdim=True)
        return self.blocks(self.tokens(ids) + self.places, src_key_padding_mask=padding)


class CaptionEmbedder(nn.Module):
    """Features of a caption's tokens through a small MLP; the null caption is a buffer of features."""

    uncond_embedding: Tensor

    def __init__(self, width: int, dim: int, length: int) -> None:
        super().__init__()
        self.cap_proj: Any = nn.Module()  # named as published
        self.cap_proj.fc1 = nn.Linear(width, dim, bias=False)
        self.cap_proj.fc2 = nn.Linear(dim, dim, bias=False)
        self.register_buffer("uncond_embedding", torch.randn(length, width) / width**0.5)

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj.fc2(F.gelu(self.cap_proj.fc1(features), approximate="tanh"))

    def null(self, rows: int) -> Tensor:
        """The null caption for `rows` rows: `[rows, length, width]`."""
        return self.uncond_embedding.expand(rows, -1, -1)
