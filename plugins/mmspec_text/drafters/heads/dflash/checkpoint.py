"""Reading a DFlash head from a folder or the hub, in any of the layouts.

What tensors show is read from them, not from the config: which norms there are, biases, widths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec_text.drafters.heads.dflash.family import (
    ARCHITECTURES,
    DSPARK,
    FIELDS,
    LEFTOVERS,
    SPECULATORS,
    DFlashArchitecture,
    Sequel,
    Sight,
    canonical,
    recognised,
    settings,
)
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.entries import (
    Entries,
    agree,
    architectures,
    counted,
    drafted_ids,
    number,
    numbered_ids,
    part_numbers,
    positive,
)
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_text.drafters.heads.positions import SLIDING, layer_kinds
from mmspec_text.drafters.heads.stored import MAPS, HeadCheckpoint, Layout, Stored, keys_of, stored_head

QUERY, KEY = "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight"
GATE = "layers.0.mlp.gate_proj.weight"
MARKS = ("fc.weight", "hidden_norm.weight", "norm.weight", QUERY, KEY, GATE)
"""Keys by which a head of this family is known."""
THETA = 1_000_000.0
"""The base of rotary positions where a config names none."""
SUCCESSORS = "candidate_selector.successor_codebook"


@dataclass(frozen=True)
class DFlashCheckpoint(HeadCheckpoint):
    """A head of DFlash or DSpark."""

    make = DFlashNetwork
    architecture: DFlashArchitecture

    @property
    def length(self) -> int:
        return self.architecture.units


def read_dflash(name: str) -> DFlashCheckpoint:
    """Read a head."""
    stored = stored_head(name, "a DFlash", canonical, LEFTOVERS)
    layout = recognised(stored.config, stored.keys, stored.what)
    given = settings(stored.config)
    architecture = architecture_of(given, stored, layout)
    weights, ignored = stored.weights({*keys_of(DFlashNetwork, architecture), *MAPS})
    ids = numbered_ids(given, FIELDS[layout.convention], stored.what)
    given.settle(stored.what)
    return DFlashCheckpoint(name, layout, architecture, ids, weights, ignored)


def architecture_of(given: Entries, head: Stored, layout: Layout) -> DFlashArchitecture:
    """The shape of a head; `given` are the entries of its config, flat."""
    stored, what = head.headers, head.what
    if not stored.keys() >= set(MARKS):
        raise head.no_layout({layout.name: MARKS})
    sizes = BlockSizes.of(head, "layers.0.", given, THETA)
    _refuse_others(given, what)
    hidden, width = head.matrix("fc.weight")
    target_hidden, own = head.target_hidden(given, hidden), head.own_rows(given)
    if width % target_hidden:
        raise ValueError(
            f"{what}: fc.weight reads features of {width} numbers, which are not some states of {target_hidden} "
            "(target_hidden_size)"
        )
    layers = counted(part_numbers(stored, "layers."), given, (), what)
    agree(given, {"num_hidden_layers": layers}, what)
    kinds = layer_kinds(given, layers, what)
    vocab = own.get("embed_tokens", positive(given, "vocab_size", what))
    sequel = _sequel(given, head)
    rank = head.matrix("markov_head.markov_w1.weight")[1] if sequel is not None else 0
    agree(given, {"markov_rank": rank}, what)
    if SUCCESSORS in stored:
        rank = head.matrix(SUCCESSORS)[1]
    return DFlashArchitecture(
        **vars(sizes),
        sights=tuple(_sight(given, kind, layout, what) for kind in kinds),
        vocab=vocab,
        draft_vocab=drafted_ids(given, own.get("lm_head"), vocab, what),
        features=width // target_hidden,
        target_hidden=target_hidden,
        own_embedding="embed_tokens" in own,
        own_output="lm_head" in own,
        own_mask="mask_embedding" in stored,
        block=_block(given, what),
        mask_token=_mask_token(given, "mask_embedding" in stored, what),
        from_root=_from_root(given, layout, sequel),
        sequel=sequel,
        rank=rank,
        **_domino(given, head),
        confidence=_confidence(given, head, hidden, rank),
        sinks="layers.0.self_attn.attention_sink_bias" in stored,
        **_second(given, head, hidden),
        scale=number(given, "logit_scale", 1.0, what) * number(given, "output_multiplier", 1.0, what),
        embedding_scale=number(given, "input_embedding_scale", 0.0, what) or None,
        softcap=number(given, "final_logit_softcapping", 0.0, what) or None,
    )


def _block(given: Mapping[str, Any], what: str) -> int:
    block = positive(given, "block_size", what)
    if not 2 <= block <= 512:
        raise ValueError(f"{what}: block_size in its config is from 2 to 512, and not {block}")
    return block


def _mask_token(given: Mapping[str, Any], own: bool, what: str) -> int | None:
    token = given.get("mask_token_id")
    if token is None and own:
        return None
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        raise ValueError(f"{what}: its config has no id mask_token_id, but {token!r}, and there is no mask_embedding")
    return token


def _sequel(given: Mapping[str, Any], head: Stored) -> Sequel | None:
    stored, what = head.headers, head.what
    if not any(key.startswith("markov_head.") for key in stored):
        if given.get("markov_rank"):
            raise ValueError(f"{what}: its config has markov_rank, and markov_head.markov_w1.weight is missing")
        return None
    if "markov_head.markov_w1.weight" not in stored:
        raise ValueError(f"{what} has a Markov head, and markov_head.markov_w1.weight is missing")
    kind = str(given.get("markov_head_type") or "vanilla").lower()
    for known in get_args(Sequel):
        if known == kind:
            return known
    raise ValueError(f"{what}: {unknown('kind of Markov head (markov_head_type)', kind, get_args(Sequel))}")


def _domino(given: Mapping[str, Any], head: Stored) -> dict[str, Any]:
    """Of a head with Domino's correction: its sizes, by their names in `DFlashArchitecture`."""
    if given.get("projector_type") != "domino" and not any(key.startswith("prefix_gru.") for key in head.headers):
        return {}
    pure = given.get("pure_draft_prefix_len") or 0
    if not isinstance(pure, int) or pure < 0:
        raise ValueError(f"{head.what}: pure_draft_prefix_len in its config is no number of units: {shown(repr(pure))}")
    gru, inside = head.matrix("prefix_gru.weight_hh_l0")[1], head.matrix("embed_proj.0.weight")[0]
    agree(given, {"gru_hidden_dim": gru, "emb_dim": inside}, head.what)
    return {"gru": gru, "inside": inside, "uncorrected": pure}


def _second(given: Mapping[str, Any], head: Stored, hidden: int) -> dict[str, Any]:
    """Of a head of DFlash2: its sizes, by their names in `DFlashArchitecture`."""
    found: dict[str, Any] = {}
    kernel = head.headers.get("layers.0.attention_conv.base_kernel")
    if kernel is not None or given.get("conv_kernel_size"):
        taps, size = (positive(given, name, head.what) for name in ("conv_kernel_size", "conv_group_size"))
        if hidden % size or taps > positive(given, "block_size", head.what):
            raise ValueError(
                f"{head.what}: conv_group_size {size} divides its {hidden} numbers, and conv_kernel_size {taps} is no "
                "more than block_size"
            )
        if kernel is not None:
            kernels = head.matrix("layers.0.attention_conv.kernel_projection.weight")[0]
            agree(given, {"conv_group_size": 2 * hidden * taps // max(1, kernels)}, head.what)
        found |= {"taps": taps, "groups": hidden // size}
    if SUCCESSORS in head.headers or given.get("selector_rank"):
        found["candidates"] = positive(given, "selector_top_k", head.what)
        agree(given, {"selector_rank": head.matrix(SUCCESSORS)[1]}, head.what)
    return found


def _confidence(given: Mapping[str, Any], head: Stored, hidden: int, rank: int) -> int:
    """Numbers that the confidence head reads: a state, and perhaps the Markov head's embedding of the unit before."""
    key, what = "confidence_head.proj.weight", head.what
    if key not in head.headers:
        if given.get("enable_confidence_head"):
            raise ValueError(f"{what}: its config has enable_confidence_head, and {key} is missing")
        return 0
    shape = head.matrix(key)
    joined = given.get("confidence_head_with_markov", shape[1] > hidden)
    wanted = 1, hidden + (rank if joined else 0)
    if shape != wanted:
        said = f"a state of {hidden} numbers" + (f" and {rank} of the Markov head" if joined else "")
        raise ValueError(f"{what}: {key} has the shape {list(shape)}, and a guess from {said} takes {list(wanted)}")
    return wanted[1]


def _from_root(given: Mapping[str, Any], layout: Layout, sequel: Sequel | None) -> bool:
    """True if the root's row scores the first unit.

    Configs say so (`sample_from_anchor`; SpecForge's `shift_label`), or the family does: all that DeepSpec trains is a
    DSpark model, with a Markov head or without one (`markov_rank: 0`), and its labels begin behind the root.
    """
    for entry in ("sample_from_anchor", "shift_label"):
        if given.get(entry) is not None:
            return bool(given[entry])
    return (sequel is not None or layout is DSPARK) and not given.get("dspark_bonus_anchor", False)


def _refuse_others(given: Mapping[str, Any], what: str) -> None:
    for name in architectures(given):
        if name not in ARCHITECTURES:
            raise ValueError(f"{what} is of another family: {unknown('architecture', name, ARCHITECTURES)}")
    kind = given.get("projector_type")
    if kind not in (None, "dflash", "dspark", "domino"):
        raise ValueError(f"{what} has a head of another family behind its blocks (projector_type {shown(repr(kind))})")


def _sight(given: Mapping[str, Any], kind: str, layout: Layout, what: str) -> Sight:
    """The reach of rows in a layer: a window if the layer's kind or `use_swa` says so; causal if named, or so by kind.

    JetSpec says `causal_head`; nothing else tells its heads from DFlash's.
    """
    swa = bool(given.get("use_swa")) and SLIDING not in (given.get("layer_types") or ())
    name = "swa_window_size" if given.get("swa_window_size") else "sliding_window"
    rows = positive(given, name, what) if swa or kind == SLIDING else None
    named = [given[name] for name in ("is_causal", "causal", "causal_head") if given.get(name) is not None]
    if named:
        return Sight(rows, bool(named[0]), layout == SPECULATORS)
    causal = kind == SLIDING and not given.get("sliding_window_non_causal", False)
    return Sight(rows, causal, layout == SPECULATORS)
