"""Published open-oasis files: what in them is no weight, and the sizes that their shapes say."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

FREQUENCIES = "rotary_emb.freqs"
#: Published sizes: (width, blocks) to heads.
HEADS = {(1024, 16): 16}


def without_frequencies(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rotary frequencies are computed. Files have them in every block, twice, or not at all: they share memory."""
    return {key: value for key, value in state.items() if not key.endswith(FREQUENCIES)}


def oasis_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a transformer's weights.

    Args:
        state: Plain keys.
        given: What is known otherwise.

    Raises:
        ValueError: It is no such transformer, or its number of heads has to be given.
    """
    if "x_embedder.proj.weight" not in state or "blocks.0.t_attn.to_qkv.weight" not in state:
        raise ValueError("these are no weights of Oasis's transformer: there is no x_embedder or no blocks.0.t_attn")
    dim, channels, patch, _ = state["x_embedder.proj.weight"].shape
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    heads = given.get("num_heads", HEADS.get((dim, depth)))
    if heads is None:
        raise ValueError(f"width {dim} with {depth} blocks is no published size: say num_heads=")
    sizes = {"in_channels": channels, "patch_size": patch, "hidden_size": dim, "depth": depth, "num_heads": heads}
    return sizes | {"external_cond_dim": state["external_cond.weight"].shape[1]} | dict(given)
