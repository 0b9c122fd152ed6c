"""Reading a head of the EAGLE family from a folder or the hub, in any of the layouts.

What tensors show is read from them, not from the config: which norms there are, biases, widths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mmspec_text.drafters.heads.eagle.family import (
    DEEPSPEC,
    EAGLE,
    IDS,
    JOINS,
    LANTERN,
    LAYER_IDS,
    Architecture,
    canonical,
    recognised,
    settings,
)
from mmspec_text.drafters.heads.eagle.network import EagleNetwork, by_halves
from mmspec_text.drafters.heads.entries import (
    Entries,
    agree,
    asked_length,
    counted,
    drafted_ids,
    number,
    numbered_ids,
    part_numbers,
    positive,
)
from mmspec_text.drafters.heads.latent import DOWN, Latent
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_text.drafters.heads.positions import SLIDING, layer_kinds
from mmspec_text.drafters.heads.stored import MAPS, HeadCheckpoint, Layout, Stored, keys_of, stored_head

QUERY, KEY = "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight"
OUT, GATE = "layers.0.self_attn.o_proj.weight", "layers.0.mlp.gate_proj.weight"
AFTER = "layers.0.post_attention_layernorm.weight"
LSTM, FIRST_NORM = "lstm.weight_ih_l0", "layers.0.input_layernorm.weight"
SAMPLED, WRITES = JOINS[1], "layers.0.mlp.down_proj"
FORMS = {
    "EAGLE-1": ("fc.weight", QUERY, KEY, OUT, GATE, AFTER),
    "FSPAD": (SAMPLED, QUERY, KEY, OUT, GATE, AFTER),
    "Falcon": (LSTM, QUERY, KEY, OUT, GATE, AFTER),
    "EAGLE-3": (QUERY, KEY, OUT, GATE, AFTER, "layers.0.hidden_norm.weight", "norm.weight"),
}
"""Keys by which the two forms are known."""
MASKS = ("mask_token_id", "ptd_token_id", "pard_token")
"""Names that kits give to the id of units that are not known."""
Kind = Literal["eagle", "p-eagle", "falcon"]
MARKS: Mapping[Kind, tuple[str, str]] = {"p-eagle": ("P-EAGLE", "mask_hidden"), "falcon": ("Falcon", LSTM)}
"""Names of other kinds of heads, and the tensors by which they are known."""
LEFTOVERS = ("rotary_emb", "verifier_", "parallel_draft_heads.", ".k_scale", ".v_scale")
"""Parts of keys of what files carry beside a head: constants, the target's weights (speculators), Medusa's heads for
units behind its own (ModelOpt), scales of a quantised cache."""
PAST = "lstm.weight_hh_l"
"""Beginning of an LSTM's weights for its own past; a cell that begins with nothing has none (Falcon)."""


@dataclass(frozen=True)
class Checkpoint(HeadCheckpoint):
    """A head of the EAGLE family."""

    make = EagleNetwork
    architecture: Architecture
    mask_token: int | None = None  # the id that stands for units that are not known; None: it is no head of P-EAGLE
    asked: int | None = None  # units per draft that its config asks for

    @property
    def length(self) -> int | None:
        return self.asked


def read_checkpoint(name: str, kind: Kind = "eagle") -> Checkpoint:
    """Read a head.

    `kind` is what it is to be: a head that drafts all units in one pass (`p-eagle`), or blocks (`falcon`), or neither.
    """
    stored = stored_head(name, "an EAGLE", canonical, (*LEFTOVERS, PAST))
    layout = recognised(stored.config, stored.keys)
    given = settings(stored.config)
    if layout is EAGLE and "layers.0.hidden_norm.weight" not in stored.headers and "norm.weight" not in stored.headers:
        stored = stored.without(FIRST_NORM)  # the first layer of EAGLE-1 has no such norm, whatever its file carries
    architecture = architecture_of(given, stored, layout)
    found: Kind = "p-eagle" if architecture.parallel else "falcon" if architecture.block > 1 else "eagle"
    if found != kind:
        if found in MARKS:
            title, mark = MARKS[found]
            raise ValueError(f"{stored.what} is a head of {title} ({mark}), which the drafter {found} takes")
        title, mark = MARKS[kind]
        raise ValueError(f"{stored.what} has no {mark}: it is no head of {title}; the drafter eagle takes it")
    weights, ignored = stored.weights({*keys_of(EagleNetwork, architecture), *MAPS})
    if architecture.grid:
        weights = by_halves(weights, architecture)
    if architecture.latent is not None:
        weights = architecture.latent.by_halves(weights)
    deepspec = layout is DEEPSPEC
    ids = numbered_ids(given, LAYER_IDS if deepspec else IDS, stored.what)
    mask = mask_token(given, stored.what) if architecture.parallel else None
    asked = positive(given, "ttt_length", stored.what) if deepspec else asked_length(given, stored.what)
    given.settle(stored.what, *MASKS, "parallel_draft_step", "parallel_draft_heads_num_layers")
    return Checkpoint(name, layout, architecture, ids, weights, ignored, mask, asked)


def mask_token(given: Mapping[str, Any], what: str) -> int:
    """The id that stands for units that are not known."""
    named = [given[name] for name in MASKS if given.get(name) is not None]
    if not named or type(named[0]) is not int or named[0] < 0:
        raise ValueError(f"{what}: its config has no id {MASKS[0]} (or {', '.join(MASKS[1:])}), but {named[:1]}")
    return int(named[0])


def architecture_of(given: Entries, head: Stored, layout: Layout) -> Architecture:
    """The shape of a head; `given` are the entries of its config, flat."""
    stored, what = head.headers, head.what
    latent = Latent.of(head, "layers.0.", given)
    read = QUERY if latent is None else f"layers.0.{DOWN}.weight"
    if not all(key in stored for key in ((QUERY, KEY, OUT, GATE) if latent is None else (read, OUT, GATE))):
        raise head.no_layout(FORMS)
    sizes = BlockSizes.of(head, "layers.0.", given, turning=None if latent is None else latent.turning)
    hidden, inside = sizes.hidden, stored[read].shape[1]
    if inside not in (hidden, 2 * hidden):
        raise ValueError(
            f"{what}: {read} reads {inside} numbers, and a state has {hidden}: neither one nor two of them"
        )
    fused = inside == 2 * hidden
    if layout is LANTERN and (fused or sizes.head_dim % 4):
        raise ValueError(
            f"{what} drafts codes on a grid: its queries come from one state and half of their pairs turns with the "
            f"row, half with the column; there are heads of {sizes.head_dim} numbers, over {inside}"
        )
    projected = fused and bool(given.get("use_aux_hidden_state", True))
    norms = {name for name in ("input_layernorm", "hidden_norm") if f"layers.0.{name}.weight" in stored}
    norms |= {"input_layernorm"} if fused else set()
    norms |= {"hidden_norm"} if projected else set()
    deep = "hidden_norm" if "layers.1.hidden_norm.weight" in stored else "input_layernorm"
    deep = "input_layernorm" if "layers.1.input_layernorm.weight" in stored else deep
    target_hidden, own = head.target_hidden(given, hidden), head.own_rows(given)
    vocab = positive(given, "vocab_size", what)
    layers = counted(part_numbers(stored, "layers."), given, (), what)
    agree(given, {"num_hidden_layers": layers, "layernorms": "embedding_norm.weight" in stored}, what)
    kinds, parallel = layer_kinds(given, layers, what), given.get("speculators_model_type") == "peagle"
    parallel = parallel or bool(given.get("parallel_drafting"))
    # A head of EAGLE-1 with a norm of its own predicts the target's normalised state, and feeds it back.
    predicts_normed = not fused and "norm.weight" in stored and layout.name != "speculators"
    parts = vars(sizes) | {"biases": sizes.biases | ({"lstm"} if "lstm.bias_ih_l0" in stored else set())}
    joins = not fused and LSTM not in stored  # by `fc` alone
    return Architecture(
        **parts,
        layers=layers,
        vocab=own.get("embed_tokens", vocab),
        draft_vocab=drafted_ids(given, own.get("lm_head"), vocab, what),
        features=_features(given, head, projected, fused, hidden, target_hidden),
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
        norm_named=given.get("norm_output") is not None,
        latent=latent,
        window=positive(given, "sliding_window", what) if SLIDING in kinds else None,
        wide=frozenset(number for number, kind in enumerate(kinds) if kind != SLIDING),
        scale=number(given, "logit_scale", 1.0, what),
        parallel=parallel or "mask_hidden" in stored,
        sampled=joins and SAMPLED in stored,
        # As in its authors' class, which has one layer and no last norm
        split=joins and layers == 1 and "norm.weight" not in stored and head.rows(WRITES) == {WRITES: 2 * hidden},
        grid=layout is LANTERN,
        block=_block(given, head),
    )


def _features(
    given: Mapping[str, Any], head: Stored, projected: bool, fused: bool, hidden: int, target_hidden: int
) -> int:
    if (fused and not projected) or LSTM in head.headers:
        return 1
    joined = next((key for key in JOINS if key in head.headers), None)
    if joined is None:
        raise ValueError(f"{head.what} has no {' or '.join(JOINS)}, and does not say use_aux_hidden_state: false")
    width = head.headers[joined].shape[1] - (0 if fused else hidden)
    ids = given.get(IDS)
    named = given.get("num_aux_hidden_states") or (len(ids) if isinstance(ids, list) and ids else None)
    if width <= 0 or width % target_hidden or (fused and named is not None and width != named * target_hidden):
        raise ValueError(
            f"{head.what}: {joined} reads features of {width} numbers, which are not "
            f"{named if named is not None else 'some'} states of {target_hidden} ({IDS}, target_hidden_size)"
        )
    return width // target_hidden


def _block(given: Mapping[str, Any], head: Stored) -> int:
    if LSTM not in head.headers:
        return 1
    block = positive(given, "k_mask", head.what)
    if block == 1:
        raise ValueError(f"{head.what} has an LSTM, as heads of Falcon have, and drafts blocks of one unit (k_mask)")
    return block
