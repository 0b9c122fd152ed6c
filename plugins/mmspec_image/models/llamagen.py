"""LlamaGen's transformer: a Llama over VQ codes in raster order, after a class or a caption.

Sun et al., "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation" (arXiv 2406.06525). Keys are the
published ones, so that official files load; sizes are read from their shapes.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.kits.pictures.models.blocks import RMSNorm, grid_rotary, run_blocks, teacher_forced, transformer_blocks
from mmspec.kits.pictures.models.captions import CaptionEmbedder
from mmspec.kits.pictures.models.official import Source, count_in, from_official, shape_in


class ClassEmbedder(nn.Module):
    """A vector per class; the last row is the null class."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(classes + 1, dim)

    def forward(self, labels: Tensor) -> Tensor:
        return self.embedding_table(labels)[:, None]

    def null(self, rows: int) -> Tensor:
        """The null class for `rows` rows."""
        table = self.embedding_table
        return torch.full((rows,), table.num_embeddings - 1, device=table.weight.device)


class LlamaGenTransformer(ModelMixin, ConfigMixin):
    """The transformer."""

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 16384,
        grid: int = 16,  # codes per side of the picture
        *,
        dim: int = 768,
        n_layer: int = 12,
        n_head: int = 12,
        n_kv_head: int | None = None,
        multiple_of: int = 256,  # the hidden width of feed-forwards, 2/3 · 4 · dim, is rounded up to a multiple of this
        model_type: str = "c2i",  # `c2i` (a class) or `t2i` (a caption)
        num_classes: int = 1000,  # without the null class
        caption_dim: int = 2048,
        cls_token_num: int = 1,  # conditioning positions: 1 for a class, the length of captions otherwise
        rope_base: float = 10_000.0,
        norm_eps: float = 1e-5,
        condition_vanishes: bool = True,  # as published: queries and keys of conditioning positions are zero
    ) -> None:
        super().__init__()
        if model_type not in ("c2i", "t2i"):
            raise ValueError(f"model_type is 'c2i' (a class) or 't2i' (a caption), not {model_type!r}")
        self.cls_embedding: Any = (
            ClassEmbedder(num_classes, dim) if model_type == "c2i" else CaptionEmbedder(caption_dim, dim, cls_token_num)
        )
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.layers = transformer_blocks(dim, n_layer, n_head, n_kv_head or n_head, multiple_of, norm_eps)
        self.norm = RMSNorm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        # No buffer, so that it stays float32, as published, in every dtype of the weights.
        self.rotary = self.positions(dim // n_head)
        self.register_buffer("entries", None, persistent=False)  # `[vocab, width]`: the VQ's, set by a pipeline

    @classmethod
    def from_official(cls, source: Source, **config: Any) -> Self:
        """The model of a published file, or of its contents; see `mmspec.kits.pictures.models.official`.

        `config` is what cannot be read from the weights: `grid` (24 of the 384-pixel files, 32 of the 512-pixel ones),
        and `n_head` of an unpublished size.
        """
        return from_official(lambda state: cls(**transformer_sizes(state, config)), source, LEFT_OUT)

    @property
    def cells(self) -> int:
        return self.config.grid**2

    def forward(self, condition: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """Teacher forcing: scores `[batch, n, vocab]` float32, where entry i predicts code i, from classes `[batch]` or
        caption features `[batch, caption, width]` with their mask of padding (`[batch, caption]`), and the picture's
        first codes `[batch, n]`.
        """
        return self.logits(teacher_forced(self, self.cls_embedding(condition), codes, mask))

    def positions(self, width: int) -> Tensor:
        """Cosines and sines of all positions for attention heads of a width: `[position, width / 2, 2]`."""
        of = self.config
        return grid_rotary(of.grid, width, of.cls_token_num, of.rope_base, of.condition_vanishes)

    def embed(self, codes: Tensor) -> Tensor:
        return self.tok_embeddings(codes)

    def run(self, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any) -> Tensor:
        return run_blocks(self, x, position, mask, keys)

    def logits(self, x: Tensor) -> Tensor:
        """Logits `[batch, node, vocab]` float32 of hidden states."""
        return self.output(self.norm(x)).float()


LEFT_OUT = ("kv_cache", "freqs_cis", "causal_mask")  # parts of keys of entries that are no weights
CAPTIONS = "cls_embedding.uncond_embedding"  # key of a weight that only models for captions have

#: Published sizes: (width, blocks) to heads.
HEADS = {
    (768, 12): 12, (1024, 24): 16, (1280, 36): 20, (1536, 48): 24, (2560, 48): 40, (2048, 22): 32, (3200, 24): 32,
    (4096, 32): 32,
}  # fmt: skip


def transformer_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a transformer's weights under plain keys, and what the user gave: `grid` (default 16), heads
    of an unpublished size, ….
    """
    if "tok_embeddings.weight" not in state:
        raise ValueError("these are no weights of a LlamaGen transformer: there is no tok_embeddings.weight")
    vocab, dim = shape_in(state, "tok_embeddings.weight", 2)
    layers = count_in(state, "layers.")
    sizes: dict[str, Any] = {"vocab_size": vocab, "dim": dim, "n_layer": layers}
    sizes["multiple_of"] = shape_in(state, "layers.0.feed_forward.w1.weight", 2)[0]
    if CAPTIONS in state:
        length, width = shape_in(state, CAPTIONS, 2)
        sizes |= {"model_type": "t2i", "cls_token_num": length, "caption_dim": width}
    else:
        classes = shape_in(state, "cls_embedding.embedding_table.weight", 2)[0] - 1
        sizes |= {"model_type": "c2i", "num_classes": classes}
    heads = given.get("n_head", HEADS.get((dim, layers)))
    if heads is None:
        raise ValueError(f"width {dim} with {layers} blocks is no published size: say n_head=")
    if not isinstance(heads, int) or heads < 1 or dim % heads:
        raise ValueError(f"n_head={heads!r} does not divide a width of {dim}")
    sizes["n_head"] = heads
    rows, _ = shape_in(state, "layers.0.attention.wqkv.weight", 2)
    sizes["n_kv_head"] = (rows // (dim // heads) - heads) // 2
    return sizes | dict(given)
