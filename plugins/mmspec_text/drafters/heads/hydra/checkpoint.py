"""Reading Hydra's heads, in the layout of its authors' `hydra_lm_head`.

Hydra: `hydra_mlp.{head}.{block}.{linear,res_connection}.*`, `hydra_lm_head.{head}.*`. Hydra++ (`hydra_head_arch` is
`prefix-mlp`) has dropout layers between blocks, which count, `hydra_lm_head.{head}.1.*`, and the decoder layer
`prefix_embeding_layer.*`; its number of attention heads is not in the authors' config, and has to be added.
"""

import re

import torch

from mmspec_text.drafters.heads.hydra.network import HydraSizes, hydra_network
from mmspec_text.drafters.heads.pathwise.block import BlockSizes
from mmspec_text.drafters.heads.pathwise.checkpoint import PathCheckpoint
from mmspec_text.drafters.heads.stored import Stored, stored_head
from mmspec_text.drafters.heads.values import counted, part_numbers, positive

PREFIX_LAYER = "prefix_embeding_layer."  # the authors' spelling
FORMS = {
    "hydra": ("hydra_mlp.0.0.linear.weight", "hydra_lm_head.0.weight"),
    "hydra++": ("hydra_mlp.0.1.linear.weight", "hydra_lm_head.0.1.weight", f"{PREFIX_LAYER}norm.weight"),
}
"""Keys by which the two forms are known."""
PREFIX_FORM = re.compile(r"^(hydra_lm_head\.\d+\.1|prefix_embeding_layer)\.")
OUTER, OUTPUT = re.compile(r"^hydra_head\."), re.compile(r"^hydra_lm_head\.(\d+)\.1\.(weight|bias)$")


def canonical(key: str) -> str:
    """A checkpoint's key as the network names it."""
    key = OUTPUT.sub(r"hydra_lm_head.\1.\2", OUTER.sub("", key))
    key = key.replace(f"{PREFIX_LAYER}layers.0.", "prefix.")
    return key.replace(f"{PREFIX_LAYER}norm.", "prefix_norm.")


def read_hydra(name: str) -> PathCheckpoint:
    """Read Hydra's heads.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There are none, they are damaged, or in no known layout.
    """
    leftovers = ("rotary_emb", f"{PREFIX_LAYER}embed_tokens.")
    stored = stored_head(name, "a Hydra", canonical, leftovers, ("hydra_lm_head",), inside=("hydra_head.",))
    keys = {OUTER.sub("", key) for key in stored.keys}
    form = "hydra++" if any(PREFIX_FORM.match(key) for key in keys) else "hydra"
    if any(key not in keys for key in FORMS[form][:2]):
        raise stored.no_layout({form: FORMS[form]}, keys)
    sizes = _sizes(stored, form)
    with torch.device("meta"):
        wanted = hydra_network(sizes, 1).state_dict().keys()
    weights, ignored = stored.weights(wanted)
    return PathCheckpoint(name, form, sizes, hydra_network, weights, ignored, ("embed_tokens.weight",))


def _sizes(stored: Stored, form: str) -> HydraSizes:
    config, headers, what = stored.config, stored.headers, stored.what
    if config.get("hidden_state_offset"):
        raise ValueError(f"{what} reads an earlier state of the target (hidden_state_offset), which it is not given")
    first, step = (1, 2) if form == "hydra++" else (0, 1)
    heads = counted(part_numbers(headers, "hydra_mlp."), config, ("hydra_num_heads",), what)
    found = {(place - first) // step for place in part_numbers(headers, "hydra_mlp.", 2)}
    layers = counted(found, config, ("hydra_num_layers",), what)
    begin = f"hydra_mlp.0.{first}"
    width, inside = stored.matrix(f"{begin}.linear.weight")
    if inside != 2 * width:
        raise ValueError(f"{what}: {begin}.linear.weight reads no embedding, as with grounded_heads: false")
    rows = stored.matrix("hydra_lm_head.0.weight")[0]
    prefix = BlockSizes.of(stored, "prefix.") if form == "hydra++" else None
    if prefix is not None and prefix.hidden != width:
        raise ValueError(f"{what}: its decoder layer has states of {prefix.hidden} numbers, and its heads of {width}")
    return HydraSizes(
        units=heads,
        target_hidden=width,
        hidden=width,
        vocab=positive(config, "vocab_size", what) if config.get("vocab_size") is not None else rows,
        draft_vocab=rows,
        own_embedding=False,
        places=tuple(first + step * layer for layer in range(layers)),
        bias=any(key.startswith("hydra_lm_head.") and key.endswith(".bias") for key in headers),
        prefix=prefix,
    )
