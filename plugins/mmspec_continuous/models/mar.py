"""MAR's transformer: it predicts continuous tokens from the known tokens of the same picture, in any order.

Li et al., "Autoregressive Image Generation without Vector Quantization" (arXiv 2406.11838). The encoder sees the known
tokens only, the decoder adds the others, and a diffusion head denoises each from its vector. Weights have the published
keys (`mmspec_continuous.models.mar_official`).
"""

from typing import Any, Self

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from einops import rearrange
from torch import Tensor, nn

from mmspec.kits.pictures.models.official import Source, from_official
from mmspec_continuous.models.adaln_head import DiffusionHead
from mmspec_continuous.models.mar_official import mar_sizes, mar_state

EPS = 1e-6


class Attention(nn.Module):
    """Bidirectional self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = rearrange(self.qkv(x), "b n (three h w) -> three b h n w", three=3, h=self.heads)
        return self.proj(rearrange(F.scaled_dot_product_attention(query, key, value), "b h n w -> b n (h w)"))


class TransformerBlock(nn.Module):
    """Attention, then an MLP, each after a norm and with a residual connection."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = nn.Module()
        self.mlp.fc1 = nn.Linear(dim, hidden)
        self.mlp.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))


class MARTransformer(ModelMixin, ConfigMixin):
    """The transformer and its head. Arguments have the official names; `SIZES` of `mar_official` has their values.

    Args:
        img_size: Pixels per side of a picture.
        vae_stride: Pixels per side of a latent.
        patch_size: Latents per side of a token.
        vae_embed_dim: Channels of a latent.
        encoder_embed_dim, encoder_depth, encoder_num_heads: Width, blocks and attention heads of the encoder.
        decoder_embed_dim, decoder_depth, decoder_num_heads: The same of the decoder.
        mlp_ratio: Hidden width of the MLPs, in widths of the transformer.
        class_num: Number of classes, the null class not counted.
        buffer_size: Positions before the picture that hold the class.
        diffloss_d, diffloss_w: Residual blocks and width of the head.

    Raises:
        ValueError: The attention heads do not divide a width, or the tokens do not divide the picture.
    """

    @register_to_config
    def __init__(
        self,
        img_size: int = 256,
        vae_stride: int = 16,
        patch_size: int = 1,
        vae_embed_dim: int = 16,
        encoder_embed_dim: int = 768,
        encoder_depth: int = 12,
        encoder_num_heads: int = 12,
        decoder_embed_dim: int = 768,
        decoder_depth: int = 12,
        decoder_num_heads: int = 12,
        mlp_ratio: float = 4.0,
        class_num: int = 1000,
        buffer_size: int = 64,
        diffloss_d: int = 6,
        diffloss_w: int = 1024,
    ) -> None:
        super().__init__()
        for dim, heads in ((encoder_embed_dim, encoder_num_heads), (decoder_embed_dim, decoder_num_heads)):
            if dim % heads:
                raise ValueError(f"{heads} heads do not divide a width of {dim}")
        if img_size % (vae_stride * patch_size):
            raise ValueError(f"{img_size} pixels are no multiple of a token's {vae_stride * patch_size}")
        dim, length = encoder_embed_dim, buffer_size + self.cells
        self.fake_latent = nn.Parameter(torch.randn(1, dim) * 0.02)
        self.class_emb = nn.Embedding(class_num, dim)
        self.z_proj = nn.Linear(self.token_dim, dim)
        self.z_proj_ln = nn.LayerNorm(dim, eps=EPS)
        self.encoder_pos_embed_learned = nn.Parameter(torch.randn(1, length, dim) * 0.02)
        hidden = round(dim * mlp_ratio)
        self.encoder_blocks = nn.ModuleList(
            TransformerBlock(dim, encoder_num_heads, hidden) for _ in range(encoder_depth)
        )
        self.encoder_norm = nn.LayerNorm(dim, eps=EPS)
        self.decoder_embed = nn.Linear(dim, decoder_embed_dim)
        dim, hidden = decoder_embed_dim, round(decoder_embed_dim * mlp_ratio)
        self.mask_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.decoder_pos_embed_learned = nn.Parameter(torch.randn(1, length, dim) * 0.02)
        self.decoder_blocks = nn.ModuleList(
            TransformerBlock(dim, decoder_num_heads, hidden) for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(dim, eps=EPS)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.randn(1, self.cells, dim) * 0.02)
        self.diffloss = DiffusionHead(self.token_dim, dim, diffloss_w, diffloss_d)

    @classmethod
    def from_official(cls, source: Source, **config: Any) -> Self:
        """The model of a published checkpoint, with the moving average of its weights (`model_ema`) if there is one.

        Args:
            source: `checkpoint-last.pth`, or its contents, or a mapping of weights.
            **config: What the weights do not tell: `patch_size` and `vae_stride` where they are not 1 and 16, and the
                number of attention heads of an unpublished width.

        Raises:
            ValueError: The weights do not fit.
        """
        return from_official(lambda state: cls(**mar_sizes(state, config)), source, read=mar_state)

    @property
    def cells(self) -> int:
        """Tokens per picture."""
        return (self.config.img_size // (self.config.vae_stride * self.config.patch_size)) ** 2

    @property
    def token_dim(self) -> int:
        """Numbers per token."""
        return self.config.vae_embed_dim * self.config.patch_size**2

    def condition(self, labels: Tensor | None, rows: int = 1) -> Tensor:
        """Embeddings `[batch, dim]` of classes `[batch]`; None: of the null class, in `rows` rows."""
        return self.fake_latent.expand(rows, -1) if labels is None else self.class_emb(labels)

    def encode(self, tokens: Tensor, unknown: Tensor, condition: Tensor) -> Tensor:
        """Hidden states of the buffer and of the known tokens.

        Args:
            tokens: `[batch, cell, token_dim]`; the values of unknown cells have no influence.
            unknown: `[batch, cell]` bool, equally many in each row.
            condition: Class embeddings, `[batch, dim]`.

        Returns:
            `[batch, buffer + known, dim]`, known tokens in the order of their cells.

        Raises:
            ValueError: Rows have different numbers of known tokens.
        """
        seen = self._seen(unknown)
        x = self.z_proj(tokens.to(self.z_proj.weight.dtype))
        x = torch.cat([condition[:, None].expand(-1, self.config.buffer_size, -1).type_as(x), x], 1)
        x = self.z_proj_ln(x + self.encoder_pos_embed_learned)
        x = x[seen].unflatten(0, (len(tokens), -1))
        for block in self.encoder_blocks:
            x = block(x)
        return self.encoder_norm(x)

    def decode(self, x: Tensor, unknown: Tensor) -> Tensor:
        """The head's conditions of all cells, known or not: `[batch, cell, dim]`.

        Args:
            x: Hidden states from `encode`.
            unknown: `[batch, cell]` bool, as in `encode`.
        """
        x = self.decoder_embed(x)
        seen = self._seen(unknown)
        filled = self.mask_token.to(x.dtype).repeat(*seen.shape, 1)
        filled[seen] = x.flatten(0, 1)
        x = filled + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x)
        return self.decoder_norm(x)[:, self.config.buffer_size :] + self.diffusion_pos_embed_learned

    def forward(self, tokens: Tensor, unknown: Tensor, condition: Tensor) -> Tensor:
        """The head's conditions of all cells, `[batch, cell, dim]`; arguments as of `encode`."""
        return self.decode(self.encode(tokens, unknown, condition), unknown)

    def _seen(self, unknown: Tensor) -> Tensor:
        """`[batch, buffer + cell]` bool: positions that the encoder sees."""
        seen = ~unknown.bool()
        counts = seen.sum(1)
        if bool((counts != counts[0]).any()):
            raise ValueError(f"rows of one pass know equally many tokens; these know {counts.tolist()}")
        return F.pad(seen, (self.config.buffer_size, 0), value=True)
