"""DFlash heads as data: what differs between them (DFlash, arXiv 2602.06036; DSpark, 2607.05147; Domino, 2605.29707).

DFlash2 is z-lab's next head, of which there is code and no paper.

| layout | marks | where settings are | a layer id names |
|---|---|---|---|
| `dflash` | the authors' code: `dflash_config` | top, `dflash_config` | a layer's output: `target_layer_ids` |
| `dspark` | `markov_head.` and no `speculators_model_type` | top, `dflash_config`, `dspark_config` | the same |
| `speculators` | `speculators_model_type`: `dflash`, `dspark` | top, `transformer_layer_config` | a boundary: `aux_…` |

*Boundary i* is the input of layer i; *output of layer i* is boundary i + 1. Unlike in EAGLE's layouts, the name of the
field says which is meant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mmspec.registry.suggest import unknown
from mmspec_text.drafters.heads.entries import Entries, architectures, renamed
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_text.drafters.heads.stored import Layout

Sequel = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class Sight:
    """The reach of a block's rows in one layer."""

    window: int | None = None  # rows of the known text that are seen; None: all
    causal: bool = False  # whether rows see only those before them in the block, and not all of it
    from_root: bool = False  # whether the window ends at the root for all rows of the block, and not at each row


@dataclass(frozen=True, kw_only=True)
class DFlashArchitecture(BlockSizes):
    """The shape of a head."""

    head_norms: bool = True
    sights: tuple[Sight, ...]  # what each of its layers sees
    vocab: int  # rows of its own embedding, if it has one
    draft_vocab: int  # rows of its own output layer, if it has one
    features: int  # states of the target in one feature
    target_hidden: int  # numbers of each of them
    own_embedding: bool  # whether the checkpoint has an embedding; else it is the target's
    own_output: bool  # whether it has an output layer; else it is the target's
    own_mask: bool  # whether it has a state of its own for units that are not known (`mask_embedding`)
    block: int  # rows of a block, the root included
    mask_token: int | None  # the id that stands for units that are not known; None only with `own_mask`
    from_root: bool  # whether the root's row scores the first unit, so that a block has `block` units, and not one less
    sequel: Sequel | None = None  # the kind of Markov head; None: there is none
    rank: int = 0  # numbers of its states
    gru: int = 0  # numbers of Domino's state; 0: it has no such head
    inside: int = 0  # numbers between the two matrices of its term
    uncorrected: int = 0  # units of a block in front of the first that has the term
    taps: int = 0  # rows that DFlash2's convolutions read, the row itself included; 0: it has none
    groups: int = 0  # groups of numbers, of one kernel each
    candidates: int = 0  # units that DFlash2's selector keeps of every depth; 0: it has none
    confidence: int = 0  # numbers that its confidence head reads; 0: it has none
    sinks: bool = False  # attention heads have a logit that takes weight
    scale: float = 1.0  # factor of the logits
    embedding_scale: float | None = None  # of rows of the target's table; None: its module says
    softcap: float | None = None  # logits are softcap · tanh(logit / softcap)

    @property
    def units(self) -> int:
        """Units of a block."""
        return self.block - (0 if self.from_root else 1)


KINDS = ("dflash", "dspark")
"""Kinds of speculators checkpoints that are heads of this family."""
PARTS = ("dspark_config", "dflash_config", "transformer_layer_config")
"""Parts of a config in which layouts put settings."""
LEFTOVERS = ("rotary_emb", "verifier_")
"""Parts of keys of what files carry beside a head: constants, the target's weights (speculators)."""
ARCHITECTURES = (
    "DFlashDraftModel",
    "DFlashSpeculator",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "DFlashDSparkDraftModel",
    "DominoDraftModel",
    "DFlash2DraftModel",
    "Qwen3DSparkModel",
    "MuseGlimmerAssistantModel",
)
"""The model types of configs that are read; an architecture of another name is another family."""
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


def recognised(config: Mapping[str, Any], keys: Iterable[str], what: str) -> Layout:
    """The layout of a checkpoint, which is called `what` in errors."""
    kind = config.get("speculators_model_type")
    if kind is not None:
        if kind not in KINDS:
            raise ValueError(f"{what}: {unknown('kind of DFlash head', str(kind), KINDS)}")
        return SPECULATORS
    deepspec = any("dspark" in name.lower() for name in architectures(config))
    return DSPARK if deepspec or any(key.startswith("markov_head.") for key in keys) else DFLASH


def is_head(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """True if a stored model is a head of this family, and no language model and no head of another one."""
    return {"fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_proj.weight"} <= {canonical(key) for key in keys}


def settings(config: Mapping[str, Any]) -> Entries:
    """The entries of a config and of the parts in which some layouts put them; the inner ones win."""
    return Entries(*(config.get(part) for part in PARTS), config)
