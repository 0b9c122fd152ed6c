"""Published LlamaGen files: entries that are no weights, and sizes read from shapes.

A state that was saved after generation contains key caches.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.kits.pictures.models.official import count_in, shape_in

LEFT_OUT = ("kv_cache", "freqs_cis", "causal_mask")
"""Parts of keys of entries that are no weights."""
CAPTIONS = "cls_embedding.uncond_embedding"
"""Key of a weight that only models for captions have."""

#: Published sizes: (width, blocks) to heads.
HEADS = {
    (768, 12): 12, (1024, 24): 16, (1280, 36): 20, (1536, 48): 24, (2560, 48): 40, (2048, 22): 32, (3200, 24): 32,
    (4096, 32): 32,
}  # fmt: skip


def transformer_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a transformer's weights.

    Args:
        state: Weights under plain keys.
        given: Arguments that the user gave: `grid` (default 16), heads of an unpublished size, ….

    Raises:
        ValueError: The weights are no LlamaGen transformer's, or the number of heads has to be given.
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
