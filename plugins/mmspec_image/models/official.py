"""Published LlamaGen files: what in them is no weight, and the sizes that their shapes say.

A state that was saved after generation holds key caches.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

LEFT_OUT = ("kv_cache", "freqs_cis", "causal_mask")
"""Words in keys of what is no weight."""

#: Published sizes: (width, blocks) to heads.
HEADS = {
    (768, 12): 12, (1024, 24): 16, (1280, 36): 20, (1536, 48): 24, (2560, 48): 40, (2048, 22): 32, (3200, 24): 32,
    (4096, 32): 32,
}  # fmt: skip


def transformer_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a transformer's weights.

    Args:
        state: Plain keys.
        given: What is known otherwise: `grid` (16 where nothing is said), heads of an unpublished size, ….

    Raises:
        ValueError: It is no such transformer, or its number of heads has to be given.
    """
    if "tok_embeddings.weight" not in state:
        raise ValueError("these are no weights of a LlamaGen transformer: there is no tok_embeddings.weight")
    vocab, dim = state["tok_embeddings.weight"].shape
    layers = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("layers."))
    sizes: dict[str, Any] = {"vocab_size": vocab, "dim": dim, "n_layer": layers}
    sizes["multiple_of"] = state["layers.0.feed_forward.w1.weight"].shape[0]
    captions = state.get("cls_embedding.uncond_embedding")
    if captions is None:
        sizes |= {"model_type": "c2i", "num_classes": len(state["cls_embedding.embedding_table.weight"]) - 1}
    else:
        sizes |= {"model_type": "t2i", "cls_token_num": captions.shape[0], "caption_dim": captions.shape[1]}
    heads = given.get("n_head", HEADS.get((dim, layers)))
    if heads is None:
        raise ValueError(f"width {dim} with {layers} blocks is no published size: say n_head=")
    sizes["n_head"] = heads
    rows = state["layers.0.attention.wqkv.weight"].shape[0]
    sizes["n_kv_head"] = (rows // (dim // heads) - heads) // 2
    return sizes | dict(given)
