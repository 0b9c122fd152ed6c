"""The layouts in which DFlash heads are stored.

| layout | marks | where settings are | a layer id names |
|---|---|---|---|
| `dflash` | the authors' code: `dflash_config` | top, `dflash_config` | a layer's output: `target_layer_ids` |
| `dspark` | `markov_head.` and no `speculators_model_type` | top, `dflash_config`, `dspark_config` | the same |
| `speculators` | `speculators_model_type`: `dflash`, `dspark` | top, `transformer_layer_config` | a boundary: `aux_…` |

*Boundary i* is the input of layer i; *output of layer i* is boundary i + 1. Unlike in EAGLE's layouts, the name of the
field says which is meant.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mmspec.registry.suggest import unknown
from mmspec_text.drafters.heads.eagle.layouts import Layout
from mmspec_text.drafters.heads.values import architectures, renamed

KINDS = ("dflash", "dspark")
"""Kinds of speculators checkpoints that are heads of this family."""
PARTS = ("transformer_layer_config", "dflash_config", "dspark_config")
"""Parts of a config in which layouts put settings."""
LEFTOVERS = ("rotary_emb", "verifier_", "confidence_head.")
"""Parts of keys of what files carry beside a head: constants, the target's weights (speculators), and DSpark's guess of
how far a draft holds, on which no unit of the draft depends."""
ARCHITECTURES = (
    "DFlashDraftModel",
    "DFlashSpeculator",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "DFlashDSparkDraftModel",
    "Qwen3DSparkModel",
    "MuseGlimmerAssistantModel",
)
"""What configs call the models that are read; an architecture of another name is another family."""
RENAMED = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm.", "midlayer.": "layers.0."}
"""Beginnings of keys, and what they are called here."""
DFLASH = Layout("dflash", "output")
DSPARK = Layout("dspark", "output")
SPECULATORS = Layout("speculators", "boundary")
FIELDS = {"output": "target_layer_ids", "boundary": "aux_hidden_state_layer_ids"}
"""The field that names layers, by what it means by a layer id."""


def canonical(key: str) -> str:
    """A checkpoint's key as the network names it."""
    return renamed(key.removeprefix("model."), RENAMED)


def recognised(config: Mapping[str, Any], keys: Iterable[str]) -> Layout:
    """The layout of a checkpoint.

    Raises:
        ValueError: It is a head of another kind; the message names it.
    """
    kind = config.get("speculators_model_type")
    if kind is not None:
        if kind not in KINDS:
            raise ValueError(unknown("kind of DFlash head", str(kind), KINDS))
        return SPECULATORS
    deepspec = any("dspark" in name.lower() for name in architectures(config))
    return DSPARK if deepspec or any(key.startswith("markov_head.") for key in keys) else DFLASH


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a config, with those of the parts in which some layouts put them; the inner ones win."""
    flat = dict(config)
    for part in PARTS:
        inner = config.get(part)
        if isinstance(inner, Mapping):
            flat |= {key: value for key, value in inner.items() if value is not None}
    return flat
