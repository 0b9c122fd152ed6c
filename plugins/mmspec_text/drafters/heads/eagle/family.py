"""The heads of the EAGLE family as data: what differs between them, the layouts in which they are stored, their keys.

EAGLE (Li et al., arXiv 2401.15077), EAGLE-2 (2406.16858, which has EAGLE's heads), FSPAD (Gui et al., 2408.15562),
EAGLE-3 (2503.01840) and 3.1 (2605.09992). The published versions are points in the space of `Architecture`, and so is
what training kits made of them.

| layout | marks | where settings are | a layer id names |
|---|---|---|---|
| `eagle` | the authors' code: `midlayer.`; EAGLE-1's `fc`, FSPAD's `fc.fc` and `layers.0` alone | top | a boundary |
| `specforge` | `midlayer.`, architecture `…Eagle3` | top, `eagle_config` | a layer's output |
| `speculators` | `speculators_model_type` | top, `transformer_layer_config` | a boundary |
| `nemo` | `model.` before every key | top | a layer's output |
| `modelopt` | `layers.0.`, architecture `…Eagle3` or `eagle_config` | top, `eagle_config` | a layer's output |
| `deepspec` | `layers.0.`, architecture `…Eagle3Model`, `ttt_length` | top | a layer's output: `target_layer_ids` |
| `lantern` | `input_type`: EAGLE-1 for LlamaGen, with an embedding of its own | top | a boundary |

*Boundary i* is the input of layer i; *output of layer i* is boundary i + 1. Checkpoints do not say which is meant. The
default ids of both are the same three states; explicit ids in the same field differ by one. So the layout is a first
guess, which is tried on the user's prompt (`heads/trial.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmspec.registry.suggest import unknown
from mmspec_text.drafters.heads.entries import Entries, architectures, renamed
from mmspec_text.drafters.heads.latent import DOWN, Latent
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_text.drafters.heads.stored import Layout


@dataclass(frozen=True, kw_only=True)
class Architecture(BlockSizes):
    """The shape of a head, and its switches."""

    layers: int  # attention layers
    vocab: int  # rows of its own embedding, if it has one
    draft_vocab: int  # rows of its own output layer, if it has one
    features: int  # states of the target in one feature
    target_hidden: int  # numbers of each of them
    # The first layer attends over embedding and state side by side (EAGLE-3). Else `fc` joins the two, and the feature
    # is the target's last state behind its final norm (EAGLE-1).
    fused: bool
    projected: bool  # whether `fc` turns features into states, where the first layer is fused
    own_embedding: bool  # whether the checkpoint has an embedding; else it is the target's
    own_output: bool  # whether it has an output layer; else it is the target's
    final_norm: bool  # whether states are normalised before the output layer
    embedding_norm: bool  # whether embeddings are normalised before `fc` joins them
    # Which norms the first layer has: of `input_layernorm` (embeddings; of the joined states, if the layer is not
    # fused) and `hidden_norm` (states)
    first_norms: frozenset[str]
    deep_norm: str = "input_layernorm"  # name of the norm of layers behind the first one
    norm_before_residual: bool = False  # the residual of the first layer is the normalised state
    norm_before_fc: bool = False  # one norm over a whole feature
    fc_norm: bool = False  # one norm for each of its states
    norm_output: bool = False  # the state that is fed back is normalised (3.1).
    norm_named: bool = False  # whether its config says so, or says that it is not
    latent: Latent | None = None  # the sizes of its attention, where that is latent (DeepSeek's, Kimi's)
    window: int | None = None  # rows that attention covers; None: all
    wide: frozenset[int] = frozenset()  # layers whose attention covers all rows, whatever the window
    scale: float = 1.0  # factor of the logits
    parallel: bool = False  # it has a feature for units that are not known, and drafts all units in one pass (P-EAGLE)
    sampled: bool = False  # `fc` adds to what it joins a part that the embedding chooses (FSPAD's feature sampling)
    # Its layer has two outputs: the state that is scored, and the feature that is fed back (FSPAD's partial alignment)
    split: bool = False
    grid: bool = False  # units stand on the target's grid, whose rotary positions the head shares (LANTERN)
    # k, units that a pass scores. If more than 1, the predicted feature lies so far ahead, and an LSTM that is run over
    # every row alone joins embedding and feature, instead of `fc` (Falcon).
    block: int = 1

    @property
    def width(self) -> int:
        """Numbers of one feature."""
        return self.features * self.target_hidden


IDS, LAYER_IDS = "eagle_aux_hidden_state_layer_ids", "target_layer_ids"
"""The entry that names layers, and what DeepSpec calls it."""
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
ATTENTION = ("layers.0.self_attn.q_proj.weight", f"layers.0.{DOWN}.weight")
"""Keys of which a head has one."""
JOINS = ("fc.weight", "fc.fc.weight")
"""Keys of what joins embedding and state; the second is FSPAD's."""
OTHERS = ("hidden_norm.weight", "mask_hidden")
"""Keys of heads that look like these: DFlash's, P-EAGLE's."""

EAGLE = Layout("eagle", "boundary")
SPECFORGE = Layout("specforge", "output")
SPECULATORS = Layout("speculators", "boundary", residual=True)
PARALLEL = Layout("speculators", "boundary")
NEMO = Layout("nemo", "output")
MODELOPT = Layout("modelopt", "output")
DEEPSPEC = Layout("deepspec", "output")
LANTERN = Layout("lantern", "boundary")
PICTURES = ("c2i", "t2i", "t2i2")
"""The meaning of `input_type` in LANTERN's configs: LlamaGen of classes, of captions, of captions at twice the side."""


def canonical(key: str) -> str:
    """A checkpoint's key as the network names it."""
    return renamed(key.removeprefix("model."), RENAMED)


def recognised(config: Mapping[str, Any], keys: Iterable[str]) -> Layout:
    """The layout of a checkpoint."""
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
    if config.get("ttt_length") is not None and config.get(LAYER_IDS) is not None:
        return DEEPSPEC
    third = any("eagle3" in name.lower() for name in architectures(config))
    if not third and not isinstance(config.get("eagle_config"), Mapping):
        return EAGLE
    return SPECFORGE if any(key.startswith("midlayer.") for key in names) else MODELOPT


def is_head(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """True if a stored model is a head of this family, and no language model and no head of another one."""
    names = {canonical(key) for key in keys}
    joins = not names.isdisjoint(JOINS) or bool(config.get("eagle_config"))
    return joins and not names.isdisjoint(ATTENTION) and names.isdisjoint(OTHERS)


def is_parallel(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """True if a stored model is a head of P-EAGLE."""
    return {"fc.weight", "mask_hidden"} <= {canonical(key) for key in keys}


def is_falcon(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """True if a stored model is a head of Falcon."""
    names = {canonical(key) for key in keys}
    return {"lstm.weight_ih_l0", "layers.0.self_attn.q_proj.weight"} <= names


def settings(config: Mapping[str, Any]) -> Entries:
    """The entries of a config and of the parts in which some layouts put them; the outer ones win."""
    return Entries(config, config.get("eagle_config"), config.get("transformer_layer_config"))
