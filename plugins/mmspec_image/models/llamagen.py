"""LlamaGen's transformer: a Llama over VQ codes in raster order, after a class or a caption.

Sun et al., "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation" (arXiv 2406.06525). Keys are the
published ones, so that official files load (`mmspec_image.models.official`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec_image.models.official import load_into, read_state, transformer_sizes
from mmspec_image.models.rope import grid_rotary, turn


class Keys(Protocol):
    """Where a layer's keys and values are kept between passes (the core's slot cache)."""

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of this pass; all that are visible come back: `[batch, head, slot, width]` each."""
        ...


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, eps=self.eps).type_as(x) * self.weight


class Attention(nn.Module):
    """Grouped-query attention; queries, keys and values of one matrix."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, dim // heads
        self.wqkv = nn.Linear(dim, (heads + 2 * kv_heads) * self.width, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor | None, keys: Keys | None) -> Tensor:
        made = self.wqkv(x).unflatten(-1, (-1, self.width))  # [batch, node, heads of queries, keys, values, width]
        turning, value = made.split([self.heads + self.kv_heads, self.kv_heads], 2)
        query, key = turn(turning, rotary).split([self.heads, self.kv_heads], 2)
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        if keys is not None:
            key, value = keys.update(key, value)
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention, then feed-forward, each behind a norm and beside a residual."""

    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, kv_heads)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = RMSNorm(dim, eps)
        self.ffn_norm = RMSNorm(dim, eps)

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor | None, keys: Keys | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, mask, keys)
        return x + self.feed_forward(self.ffn_norm(x))


class ClassEmbedder(nn.Module):
    """A vector a class; the last row is the null class."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(classes + 1, dim)

    def forward(self, labels: Tensor) -> Tensor:
        return self.embedding_table(labels)[:, None]

    def null(self, rows: int) -> Tensor:
        """The unconditional input of so many rows."""
        table = self.embedding_table
        return torch.full((rows,), table.num_embeddings - 1, device=table.weight.device)


class CaptionEmbedder(nn.Module):
    """Features of a caption's tokens through a small MLP; the null caption is a buffer of features."""

    def __init__(self, width: int, dim: int, length: int) -> None:
        super().__init__()
        self.cap_proj = nn.Module()
        self.cap_proj.fc1 = nn.Linear(width, dim, bias=False)
        self.cap_proj.fc2 = nn.Linear(dim, dim, bias=False)
        self.register_buffer("uncond_embedding", torch.randn(length, width) / width**0.5)

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj.fc2(F.gelu(self.cap_proj.fc1(features), approximate="tanh"))

    def null(self, rows: int) -> Tensor:
        """The unconditional input of so many rows."""
        return self.uncond_embedding.expand(rows, -1, -1)


class LlamaGenTransformer(ModelMixin, ConfigMixin):
    """The transformer.

    Args:
        vocab_size: Codes.
        grid: Codes per side of the picture.
        dim: Width.
        n_layer: Blocks.
        n_head: Query heads.
        n_kv_head: Key heads; default: as many.
        multiple_of: The hidden width of feed-forwards, 2/3 · 4 · dim, is rounded up to a multiple of this.
        model_type: `c2i` (a class) or `t2i` (a caption).
        num_classes: Of `c2i`, the null class not counted.
        caption_dim: Width of caption features, of `t2i`.
        cls_token_num: Conditioning positions: 1 for a class, the length of captions otherwise.
        rope_base: Of the rotary frequencies.
        norm_eps: Of the norms.
        condition_vanishes: As published: queries and keys of conditioning positions are zero (`models.rope`).

    Attributes:
        entries: `[vocab, width]`: the codebook of the VQ that the codes are of, where a pipeline has said so.

    Raises:
        ValueError: Heads do not divide the width, or the kind is unknown.
    """

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 16384,
        grid: int = 16,
        dim: int = 768,
        n_layer: int = 12,
        n_head: int = 12,
        n_kv_head: int | None = None,
        multiple_of: int = 256,
        model_type: str = "c2i",
        num_classes: int = 1000,
        caption_dim: int = 2048,
        cls_token_num: int = 1,
        rope_base: float = 10_000.0,
        norm_eps: float = 1e-5,
        condition_vanishes: bool = True,
    ) -> None:
        super().__init__()
        if dim % n_head or (dim // n_head) % 4:
            raise ValueError(f"{n_head} heads do not divide a width of {dim} into widths that are multiples of 4")
        if model_type not in ("c2i", "t2i"):
            raise ValueError(f"model_type is 'c2i' (a class) or 't2i' (a caption), not {model_type!r}")
        hidden = -(-int(8 * dim / 3) // multiple_of) * multiple_of
        self.cls_embedding: Any = (
            ClassEmbedder(num_classes, dim) if model_type == "c2i" else CaptionEmbedder(caption_dim, dim, cls_token_num)
        )
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        blocks = (Block(dim, n_head, n_kv_head or n_head, hidden, norm_eps) for _ in range(n_layer))
        self.layers = nn.ModuleList(blocks)
        self.norm = RMSNorm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        rotary = grid_rotary(grid, dim // n_head, cls_token_num, rope_base, condition_vanishes)
        self.register_buffer("rotary", rotary, persistent=False)
        self.register_buffer("entries", None, persistent=False)

    @classmethod
    def from_official(cls, source: str | Path | Mapping[str, Any], **config: Any) -> Self:
        """A published file, or what it holds.

        Args:
            source: Path or mapping; see `mmspec_image.models.official`.
            **config: What the weights do not say: `grid` (24 of the 384-pixel files, 32 of the 512-pixel ones), and
                `n_head` of an unpublished size.

        Raises:
            ValueError: It does not fit.
        """
        state = read_state(source)
        model = cls(**transformer_sizes(state, config))
        load_into(model, state)
        return model.eval()

    @property
    def cells(self) -> int:
        """Codes of a picture."""
        return self.config.grid**2

    def forward(self, condition: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """Teacher forcing.

        Args:
            condition: Classes `[batch]`, or caption features `[batch, caption, width]`.
            codes: `[batch, n]` the picture's first codes.
            mask: `[batch, caption]` bool: positions of the caption that are not padding; default: all.

        Returns:
            `[batch, n, vocab]` float32: entry i predicts code i.
        """
        given = self.cls_embedding(condition)
        x = torch.cat([given, self.tok_embeddings(codes[:, :-1])], 1)
        seen = visible(len(x), x.shape[1], given.shape[1], mask, x.device)
        x = self.run(x, torch.arange(x.shape[1], device=x.device)[None], seen, [None] * len(self.layers))
        return self.logits(x[:, given.shape[1] - 1 :])

    def run(self, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any) -> Tensor:
        """Hidden states of embedded positions.

        Args:
            x: `[batch, node, dim]`.
            position: `[batch, node]` (or `[1, node]`): conditioning first, then cells.
            mask: `[batch, 1, node, slot]` bool; None: a node sees every slot.
            keys: Where each layer keeps its keys; None in each: nowhere.
        """
        rotary = self.rotary[position]
        for layer, kept in zip(self.layers, keys, strict=True):
            x = layer(x, rotary, mask, kept)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """`[batch, node, vocab]` float32."""
        return self.output(self.norm(x)).float()


def visible(rows: int, length: int, given: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Who sees whom: `[rows, 1, length, length]` bool. Causal; padding of the caption is seen by itself only."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    seen = causal.expand(rows, 1, length, length)
    if mask is None:
        return seen
    columns = F.pad(mask.bool(), (0, length - given), value=True)
    itself = torch.eye(length, dtype=torch.bool, device=device)
    return seen & columns[:, None, None] | itself
