"""Published MAR checkpoints: which of their weights are meant, and the sizes that shapes tell.

`checkpoint-last.pth` holds `model`, `model_ema`, the optimiser's state and the training command's arguments, an
`argparse.Namespace`. The published numbers are of `model_ema`.
"""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.models.official import read_state
from mmspec.registry.warn import warn


def _size(dim: int, depth: int, heads: int, head_depth: int, head_width: int) -> dict[str, int]:
    both = {"embed_dim": dim, "depth": depth, "num_heads": heads}
    halves = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in both.items()}
    return halves | {"diffloss_d": head_depth, "diffloss_w": head_width}


#: Arguments of `MARTransformer` for the published sizes.
SIZES = {
    "base": _size(768, 12, 12, 6, 1024), "large": _size(1024, 16, 16, 8, 1280), "huge": _size(1280, 20, 16, 12, 1536),
}  # fmt: skip
HEADS = {size["encoder_embed_dim"]: size["encoder_num_heads"] for size in SIZES.values()}


def mar_state(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a checkpoint under their plain keys, the moving average if it has one; warns if not.

    Raises:
        ValueError: There is no such file, or no weights in it.
    """
    held = source if isinstance(source, Mapping) else _read(Path(source))
    if isinstance(held.get("model_ema"), Mapping):
        return read_state(held["model_ema"])
    if "model" in held:
        words = "there is no model_ema in it: these are the weights of the last step, not their moving average, which"
        warn(f"{words} the published numbers are of")
    return read_state(held)


def mar_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a checkpoint's weights.

    Args:
        state: Plain keys.
        given: What is known otherwise, and goes before what shapes tell.

    Raises:
        ValueError: It is no such model, or its number of heads or its patches have to be given.
    """
    if not {"diffusion_pos_embed_learned", "z_proj.weight", "diffloss.net.input_proj.weight"} <= state.keys():
        raise ValueError(
            "these are no weights of a MAR transformer: there is no diffusion_pos_embed_learned or no head"
        )
    stride, patch = given.get("vae_stride", 16), given.get("patch_size", 1)
    cells, token = state["diffusion_pos_embed_learned"].shape[1], state["z_proj.weight"].shape[1]
    if token % patch**2:
        raise ValueError(f"tokens of {token} numbers are no {patch} × {patch} patches; say another patch_size=")
    sizes: dict[str, Any] = {"vae_embed_dim": token // patch**2, "img_size": math.isqrt(cells) * stride * patch}
    for half in ("encoder", "decoder"):
        dim = state[f"{half}_pos_embed_learned"].shape[2]
        heads = given.get(f"{half}_num_heads", HEADS.get(dim))
        if heads is None:
            raise ValueError(f"width {dim} is no published size: say {half}_num_heads=")
        sizes |= {f"{half}_embed_dim": dim, f"{half}_num_heads": heads}
        sizes[f"{half}_depth"] = _count(state, f"{half}_blocks.")
    sizes["mlp_ratio"] = state["encoder_blocks.0.mlp.fc1.weight"].shape[0] / sizes["encoder_embed_dim"]
    sizes["class_num"] = len(state["class_emb.weight"])
    sizes["buffer_size"] = state["encoder_pos_embed_learned"].shape[1] - cells
    sizes["diffloss_w"] = len(state["diffloss.net.input_proj.weight"])
    sizes["diffloss_d"] = _count(state, "diffloss.net.res_blocks.")
    return sizes | dict(given)


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    """Layers whose keys begin so."""
    return len({key.removeprefix(prefix).split(".")[0] for key in state if key.startswith(prefix)})


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file() or path.suffix == ".safetensors":
        return read_state(path)
    with torch.serialization.safe_globals([argparse.Namespace]):  # plain attributes: runs no code
        return torch.load(path, map_location="cpu", weights_only=True)
