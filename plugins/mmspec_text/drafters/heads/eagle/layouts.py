"""The layouts in which heads of the EAGLE family are stored, and their keys under one set of names.

| layout | marks | where settings are | a layer id names |
|---|---|---|---|
| `eagle` | the authors' code: `midlayer.`, or EAGLE-1's `fc` and `layers.0` alone | top | a boundary |
| `specforge` | `midlayer.`, architecture `…Eagle3` | top, `eagle_config` | a layer's output |
| `speculators` | `speculators_model_type` | top, `transformer_layer_config` | a boundary |
| `nemo` | `model.` before every key | top | a layer's output |
| `modelopt` | `layers.0.`, architecture `…Eagle3` or `eagle_config` | top, `eagle_config` | a layer's output |
| `lantern` | `input_type`: EAGLE-1 for LlamaGen, with an embedding of its own | top | a boundary |

*Boundary i* is the input of layer i; *output of layer i* is boundary i + 1. Checkpoints do not say which is meant. The
default ids of both are the same three states; explicit ids in the same field differ by one. So the layout is a first
guess, which `probe.py` tries on the user's prompt.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mmspec.registry.suggest import unknown
from mmspec_text.drafters.heads.values import renamed

Convention = Literal["boundary", "output"]
KINDS = ("eagle", "eagle3", "peagle")
"""Kinds of speculators checkpoints that are heads of this family."""
RENAMED = {
    "midlayer.": "layers.0.",
    "transformer.": "layers.0.",
    "fusion_fc.": "fc.",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "layers.0.hidden_norm.",
    "hidden_layernorm.": "layers.0.input_layernorm.",
    "embedding_layernorm.": "embedding_norm.",
    "embed_layernorm.": "embedding_norm.",
    "pre_lm_head_layernorm.": "norm.",
    "lm_head_layernorm.": "norm.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}
"""Beginnings of keys, and what they are called here."""
OTHERS = ("hidden_norm.weight", "mask_hidden")
"""Keys of heads that look like these: DFlash's, P-EAGLE's."""


@dataclass(frozen=True)
class Layout:
    """A layout."""

    name: str
    convention: Convention  # what a layer id names there
    residual: bool = False  # `norm_before_residual` where the config does not say


EAGLE = Layout("eagle", "boundary")
SPECFORGE = Layout("specforge", "output")
SPECULATORS = Layout("speculators", "boundary", residual=True)
PARALLEL = Layout("speculators", "boundary")
NEMO = Layout("nemo", "output")
MODELOPT = Layout("modelopt", "output")
LANTERN = Layout("lantern", "boundary")
PICTURES = ("c2i", "t2i", "t2i2")
"""What `input_type` says in LANTERN's configs: LlamaGen of classes, of captions, of captions at twice the side."""


def canonical(key: str) -> str:
    """A checkpoint's key as the network names it."""
    return renamed(key.removeprefix("model."), RENAMED)


def recognised(config: Mapping[str, Any], keys: Iterable[str]) -> Layout:
    """The layout of a checkpoint.

    Raises:
        ValueError: It is a head of another kind; the message names it.
    """
    names = set(keys)
    kind = config.get("speculators_model_type")
    if kind is not None:
        if kind not in KINDS:
            raise ValueError(unknown("kind of EAGLE head", str(kind), KINDS))
        return PARALLEL if kind == "peagle" else SPECULATORS
    if config.get("input_type") is not None:
        if config["input_type"] not in PICTURES:
            raise ValueError(unknown("input_type of a head of LANTERN", str(config["input_type"]), PICTURES))
        return LANTERN
    if any(key.startswith("model.") for key in names):
        return NEMO
    named = config.get("architectures")
    third = isinstance(named, list) and any("eagle3" in str(name).lower() for name in named)
    if any(key.startswith("midlayer.") for key in names):
        return SPECFORGE if third or isinstance(config.get("eagle_config"), Mapping) else EAGLE
    return MODELOPT if third or isinstance(config.get("eagle_config"), Mapping) else EAGLE


def is_head(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """Whether a stored model is a head of this family, and no language model and no head of another one."""
    names = {canonical(key) for key in keys}
    joins = "fc.weight" in names or bool(config.get("eagle_config"))
    return joins and "layers.0.self_attn.q_proj.weight" in names and names.isdisjoint(OTHERS)


def is_falcon(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """Whether a stored model is a head of Falcon."""
    names = {canonical(key) for key in keys}
    return {"lstm.weight_ih_l0", "layers.0.self_attn.q_proj.weight"} <= names


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a config, with those of the parts in which some layouts put them."""
    flat: dict[str, Any] = {}
    for part in ("transformer_layer_config", "eagle_config"):
        inner = config.get(part)
        if isinstance(inner, Mapping):
            flat |= inner
    return {**flat, **{key: value for key, value in config.items() if value is not None or key not in flat}}
