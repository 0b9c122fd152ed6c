"""Reading a head of the EAGLE family from a folder or the hub, in any of the layouts.

What tensors show is read from them, not from the config: which norms there are, biases, widths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mmspec.hosts.weight_files import StoredTensor
from mmspec_text.drafters.heads.checkpoint import HeadCheckpoint
from mmspec_text.drafters.heads.eagle.family import LANTERN, Architecture, Layout, canonical, recognised, settings
from mmspec_text.drafters.heads.eagle.network import EagleNetwork, by_halves
from mmspec_text.drafters.heads.stored import MAPS, Stored, stored_head
from mmspec_text.drafters.heads.values import (
    activation,
    counted,
    drafted_ids,
    number,
    numbered_ids,
    part_numbers,
    positive,
    refuse_layers,
    rope,
    split_heads,
)

QUERY, KEY = "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight"
OUT, GATE = "layers.0.self_attn.o_proj.weight", "layers.0.mlp.gate_proj.weight"
AFTER = "layers.0.post_attention_layernorm.weight"
LSTM = "lstm.weight_ih_l0"
FORMS = {
    "EAGLE-1": ("fc.weight", QUERY, KEY, OUT, GATE, AFTER),
    "Falcon": (LSTM, QUERY, KEY, OUT, GATE, AFTER),
    "EAGLE-3": (QUERY, KEY, OUT, GATE, AFTER, "layers.0.hidden_norm.weight", "norm.weight"),
}
"""Keys by which the two forms are known."""
THETA = 10000.0
"""The base of rotary positions where a config names none; never the target's."""
MASKS = ("mask_token_id", "ptd_token_id", "pard_token")
"""Names that kits give to the id of units that are not known."""
Kind = Literal["eagle", "p-eagle", "falcon"]
MARKS: Mapping[Kind, tuple[str, str]] = {"p-eagle": ("P-EAGLE", "mask_hidden"), "falcon": ("Falcon", LSTM)}
"""Names of other kinds of heads, and the tensors by which they are known."""
LEFTOVERS = ("rotary_emb", "verifier_", "parallel_draft_heads.")
"""Parts of keys of what files carry beside a head: constants, the target's weights (speculators), Medusa's heads for
units behind its own (ModelOpt)."""
PAST = "lstm.weight_hh_l"
"""Beginning of an LSTM's weights for its own past; a cell that begins with nothing has none (Falcon)."""


@dataclass(frozen=True)
class Checkpoint(HeadCheckpoint[Architecture]):
    """A head as it is stored; the other attributes are those of `HeadCheckpoint`."""

    mask_token: int | None = None  # the id that stands for units that are not known; None: it is no head of P-EAGLE

    def network(self, vocab: int) -> EagleNetwork:
        """The head for a target of so many ids; errors as in `filled`."""
        return self.filled(EagleNetwork, vocab)


def read_checkpoint(name: str, kind: Kind = "eagle") -> Checkpoint:
    """Read a head.

    Args:
        name: A folder, or a hub name.
        kind: What it is to be: a head that drafts all units in one pass (`p-eagle`), or blocks (`falcon`), or neither.

    Raises:
        ValueError: There is none, it is damaged, or not read whole; the message names the nearest layout.
    """
    stored = stored_head(name, "an EAGLE", canonical, (*LEFTOVERS, PAST))
    layout = recognised(stored.config, stored.keys)
    given = settings(stored.config)
    architecture = architecture_of(given, stored, layout)
    found: Kind = "p-eagle" if architecture.parallel else "falcon" if architecture.block > 1 else "eagle"
    if found != kind:
        if found in MARKS:
            title, mark = MARKS[found]
            raise ValueError(f"{stored.what} is a head of {title} ({mark}), which the drafter {found} takes")
        title, mark = MARKS[kind]
        raise ValueError(f"{stored.what} has no {mark}: it is no head of {title}; the drafter eagle takes it")
    with torch.device("meta"):
        wanted = {*EagleNetwork(architecture, 1).state_dict(), *MAPS}
    weights, ignored = stored.weights(wanted)
    if architecture.grid:
        weights = by_halves(weights, architecture)
    ids = numbered_ids(given, "eagle_aux_hidden_state_layer_ids", stored.what)
    mask = _mask_token(given, stored.what) if architecture.parallel else None
    return Checkpoint(name, layout, architecture, ids, weights, ignored, mask)


def _mask_token(given: Mapping[str, Any], what: str) -> int:
    named = [given[name] for name in MASKS if given.get(name) is not None]
    if not named or type(named[0]) is not int or named[0] < 0:
        raise ValueError(f"{what}: its config has no id {MASKS[0]} (or {', '.join(MASKS[1:])}), but {named[:1]}")
    return int(named[0])


def architecture_of(given: Mapping[str, Any], head: Stored, layout: Layout) -> Architecture:
    """The shape of a head.

    Args:
        given: The config's entries, flat.
        head: The head as it is stored.
        layout: Its layout.

    Raises:
        ValueError: It is no head of this family, or its parts contradict each other.
    """
    stored, what = head.headers, head.what
    _refuse_others(given, head)
    hidden, queries = stored[OUT].shape
    inside = stored[QUERY].shape[1]
    if inside not in (hidden, 2 * hidden):
        raise ValueError(
            f"{what}: {QUERY} reads {inside} numbers, and a state has {hidden}: neither one nor two of them"
        )
    fused = inside == 2 * hidden
    keys = stored[KEY].shape[0]
    heads, head_dim = split_heads(given, queries, keys, what)
    if layout is LANTERN and (fused or head_dim % 4):
        raise ValueError(
            f"{what} drafts codes on a grid: its queries come from one state and half of their pairs turns with the "
            f"row, half with the column; there are heads of {head_dim} numbers, over {inside}"
        )
    projected = fused and bool(given.get("use_aux_hidden_state", True))
    norms = {name for name in ("input_layernorm", "hidden_norm") if f"layers.0.{name}.weight" in stored}
    norms |= {"input_layernorm"} if fused else set()
    norms |= {"hidden_norm"} if projected else set()
    deep = "hidden_norm" if "layers.1.hidden_norm.weight" in stored else "input_layernorm"
    deep = "input_layernorm" if "layers.1.input_layernorm.weight" in stored else deep
    target_hidden = positive(given, "target_hidden_size", what) if given.get("target_hidden_size") else hidden
    own = {key: stored[f"{key}.weight"].shape[0] for key in ("embed_tokens", "lm_head") if f"{key}.weight" in stored}
    vocab = positive(given, "vocab_size", what)
    # A head of EAGLE-1 with a norm of its own predicts the target's normalised state, and feeds it back.
    predicts_normed = not fused and "norm.weight" in stored and layout.name != "speculators"
    return Architecture(
        hidden=hidden,
        intermediate=stored[GATE].shape[0],
        heads=heads,
        key_heads=keys // head_dim,
        head_dim=head_dim,
        layers=counted(part_numbers(stored, "layers."), given, (), what),
        vocab=own.get("embed_tokens", vocab),
        draft_vocab=drafted_ids(given, own.get("lm_head"), vocab, what),
        features=_features(given, stored, fused, projected, hidden, target_hidden, what),
        target_hidden=target_hidden,
        fused=fused,
        projected=projected,
        own_embedding="embed_tokens" in own,
        own_output="lm_head" in own,
        final_norm=fused or "norm.weight" in stored,
        embedding_norm="embedding_norm.weight" in stored,
        first_norms=frozenset(norms),
        deep_norm=deep,
        norm_before_residual=bool(given.get("norm_before_residual", layout.residual and fused)),
        norm_before_fc=bool(given.get("norm_before_fc", False)),
        fc_norm=bool(given.get("fc_norm", given.get("use_aux_norm", False))),
        norm_output=bool(given.get("norm_output", predicts_normed)),
        head_norms="layers.0.self_attn.q_norm.weight" in stored,
        biases=_biases(stored),
        eps=number(given, "rms_norm_eps", 1e-6, what),
        activation=activation(given, what),
        rope=rope(given, THETA, what),
        window=_window(given, what),
        parallel=_parallel(given, stored),
        grid=layout is LANTERN,
        block=_block(given, stored, what),
    )


def _refuse_others(given: Mapping[str, Any], head: Stored) -> None:
    if any("kv_a_proj" in key for key in head.headers):
        raise ValueError(f"{head.what} has latent attention (kv_a_proj), which this drafter does not compute")
    refuse_layers(given, head.what)
    if not all(key in head.headers for key in (QUERY, KEY, OUT, GATE)):
        raise head.no_layout(FORMS)


def _features(
    given: Mapping[str, Any],
    stored: Mapping[str, StoredTensor],
    fused: bool,
    projected: bool,
    hidden: int,
    target_hidden: int,
    what: str,
) -> int:
    """The states in a feature."""
    if fused and not projected:
        return 1
    if LSTM in stored:
        return 1
    if "fc.weight" not in stored:
        raise ValueError(f"{what} has no fc.weight, and does not say use_aux_hidden_state: false")
    width = stored["fc.weight"].shape[1] - (0 if fused else hidden)
    ids = given.get("eagle_aux_hidden_state_layer_ids")
    named = given.get("num_aux_hidden_states") or (len(ids) if isinstance(ids, list) and ids else None)
    if width <= 0 or width % target_hidden or (fused and named is not None and width != named * target_hidden):
        raise ValueError(
            f"{what}: fc.weight reads features of {width} numbers, which are not "
            f"{named if named is not None else 'some'} states of {target_hidden} (target_hidden_size)"
        )
    return width // target_hidden


def _parallel(given: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> bool:
    """Whether a head drafts all units at once."""
    named = given.get("speculators_model_type") == "peagle" or bool(given.get("parallel_drafting"))
    return named or "mask_hidden" in stored


def _biases(stored: Mapping[str, StoredTensor]) -> frozenset[str]:
    """The layers with a bias, by the ends of their names; an LSTM names its own otherwise."""
    named = {key.removesuffix(".bias").rpartition(".")[2] for key in stored if key.endswith(".bias")}
    return frozenset(named | ({"lstm"} if "lstm.bias_ih_l0" in stored else set()))


def _block(given: Mapping[str, Any], stored: Mapping[str, StoredTensor], what: str) -> int:
    """The units that a pass scores."""
    if LSTM not in stored:
        return 1
    block = positive(given, "k_mask", what)
    if block == 1:
        raise ValueError(f"{what} has an LSTM, as heads of Falcon have, and drafts blocks of one unit (k_mask)")
    return block


def _window(given: Mapping[str, Any], what: str) -> int | None:
    """The window of attention, if the config's layers have one."""
    kinds = given.get("layer_types")
    if not isinstance(kinds, list) or "sliding_attention" not in kinds:
        return None
    return positive(given, "sliding_window", what)
