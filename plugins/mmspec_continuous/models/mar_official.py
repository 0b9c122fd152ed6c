"""Published MAR checkpoints: which of their weights are loaded, and the configuration that their shapes tell.

`checkpoint-last.pth` holds `model`, `model_ema`, the optimiser's state and the arguments of the training command, an
`argparse.Namespace`. The published results are of `model_ema`.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.kits.pictures.models.official import Source, count_in, read_file, read_state, shape_in
from mmspec.registry.warn import warn


def _size(dim: int, depth: int, heads: int, head_depth: int, head_width: int) -> dict[str, int]:
    both = {"embed_dim": dim, "depth": depth, "num_heads": heads}
    halves = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in both.items()}
    return halves | {"diffloss_d": head_depth, "diffloss_w": head_width}


SIZES = {
    "base": _size(768, 12, 12, 6, 1024), "large": _size(1024, 16, 16, 8, 1280), "huge": _size(1280, 20, 16, 12, 1536),
}  # fmt: skip
"""Arguments of `MARTransformer` for the published sizes."""
HEADS = {size["encoder_embed_dim"]: size["encoder_num_heads"] for size in SIZES.values()}


def mar_state(source: Source, left_out: Sequence[str] = ()) -> dict[str, Tensor]:
    """The weights of a checkpoint under their plain keys: their moving average, or the last ones with a warning.

    Args:
        source: The file, or its contents.
        left_out: As of `read_state`.

    Raises:
        ValueError: There is no such file, or no weights in it.
    """
    # A namespace has plain attributes only: reading it runs no code.
    contents = source if isinstance(source, Mapping) else read_file(Path(source), [argparse.Namespace])
    if isinstance(contents.get("model_ema"), Mapping):
        return read_state(contents["model_ema"], left_out)
    if "model" in contents:
        words = "there is no model_ema in it: these are the weights of the last step, not their moving average, which"
        warn(f"{words} the published numbers are of")
    return read_state(contents, left_out)


def mar_sizes(state: Mapping[str, Tensor], known: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a checkpoint's weights.

    Args:
        state: Weights under their plain keys.
        known: Arguments that are known already; they take precedence over the shapes.

    Raises:
        ValueError: These are no weights of MAR, or the number of heads or the patch size has to be given.
    """
    if not {"diffusion_pos_embed_learned", "z_proj.weight", "diffloss.net.input_proj.weight"} <= state.keys():
        raise ValueError(
            "these are no weights of a MAR transformer: there is no diffusion_pos_embed_learned or no head"
        )
    stride, patch = known.get("vae_stride", 16), known.get("patch_size", 1)
    cells = shape_in(state, "diffusion_pos_embed_learned", 3)[1]
    token = shape_in(state, "z_proj.weight", 2)[1]
    if token % patch**2:
        raise ValueError(f"tokens of {token} numbers are no {patch} × {patch} patches; say another patch_size=")
    sizes: dict[str, Any] = {"vae_embed_dim": token // patch**2, "img_size": math.isqrt(cells) * stride * patch}
    for half in ("encoder", "decoder"):
        length, dim = shape_in(state, f"{half}_pos_embed_learned", 3)[1:]
        heads = known.get(f"{half}_num_heads", HEADS.get(dim))
        if heads is None:
            raise ValueError(f"width {dim} is no published size: say {half}_num_heads=")
        sizes |= {f"{half}_embed_dim": dim, f"{half}_num_heads": heads}
        sizes[f"{half}_depth"] = count_in(state, f"{half}_blocks.")
        sizes["buffer_size"] = length - cells
        if length <= cells:
            raise ValueError(f"{half}_pos_embed_learned has {length} positions, no more than {cells} cells")
    hidden = shape_in(state, "encoder_blocks.0.mlp.fc1.weight", 2)[0]
    sizes["mlp_ratio"] = hidden / sizes["encoder_embed_dim"]
    sizes["class_num"] = shape_in(state, "class_emb.weight", 2)[0]
    sizes["diffloss_w"] = shape_in(state, "diffloss.net.input_proj.weight", 2)[0]
    sizes["diffloss_d"] = count_in(state, "diffloss.net.res_blocks.")
    return sizes | dict(known)
