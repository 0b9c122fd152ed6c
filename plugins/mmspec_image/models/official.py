"""Published LlamaGen files into our models: wrappers off, caches out, sizes read from shapes.

Files are `{"model": …}` of DDP training, bare states of FSDP, or `{"module": …}` and `{"state_dict": …}`; keys may
begin with `module.` or `_orig_mod.`; a state that was saved after generation holds key caches.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

WRAPPERS = ("model", "module", "state_dict")
PREFIXES = ("_orig_mod.", "module.")
LEFT_OUT = ("kv_cache", "freqs_cis", "causal_mask", "codebook_used")

#: Published sizes: (width, blocks) to heads.
HEADS = {
    (768, 12): 12, (1024, 24): 16, (1280, 36): 20, (1536, 48): 24, (2560, 48): 40, (2048, 22): 32, (3200, 24): 32,
    (4096, 32): 32,
}  # fmt: skip


def read_state(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of an official file, under their plain keys.

    Args:
        source: A `.pt` (read with `weights_only=True`) or `.safetensors` file, or what such a file holds.

    Raises:
        ValueError: There is no such file, or no weights in it.
    """
    held: Any = source if isinstance(source, Mapping) else _read(Path(source))
    for wrapper in WRAPPERS:
        if isinstance(held.get(wrapper), Mapping):
            held = held[wrapper]
    state = {_plain(key): value for key, value in held.items() if isinstance(value, Tensor)}
    state = {key: value for key, value in state.items() if not any(word in key for word in LEFT_OUT)}
    if not state:
        raise ValueError(f"there are no weights in it; top-level keys are {', '.join(map(str, list(held)[:6]))}")
    return state


def load_into(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state that has to fit, key by key.

    Raises:
        ValueError: A key is missing, unexpected, or of another shape; names the first of each.
    """
    own = model.state_dict()
    missing, strange = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    both = own.keys() & state.keys()
    other = [f"{k}: {list(state[k].shape)}, not {list(own[k].shape)}" for k in both if own[k].shape != state[k].shape]
    found = {"missing": missing, "unexpected": strange, "of another shape": other}
    problems = [f"{len(keys)} keys {what} ({keys[0]}{', …' * (len(keys) > 1)})" for what, keys in found.items() if keys]
    if problems:
        raise ValueError(f"these weights are not of this model: {'; '.join(problems)}")
    model.load_state_dict(dict(state))


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


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _plain(key: str) -> str:
    while key.startswith(PREFIXES):
        key = key.removeprefix(next(prefix for prefix in PREFIXES if key.startswith(prefix)))
    return key
