"""The positions of a head's layers, as its config says: windows of attention, and rotary parameters."""

from collections.abc import Collection, Mapping
from typing import Any

from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.entries import number, positive, refuse_layers

FULL, SLIDING = "full_attention", "sliding_attention"
LENGTH, LENGTHS = "original_max_position_embeddings", "max_position_embeddings"
ROTARY = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", LENGTH, "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", LENGTH, "attention_factor", "short_factor", "long_factor"),
    "yarn": (
        *("factor", LENGTH, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
}
"""Kinds of rotary positions of which transformers has tables, and what these read beside the base."""
SWITCHED = ("qwen2", "qwen3")
"""Model types whose windows are off where `use_sliding_window` is not there."""
ALIASES = {"su": "longrope", "mrope": "default"}
"""Other names of theirs in configs. Positions of text are the same in all three parts of `mrope`."""


def layer_kinds(given: Mapping[str, Any], layers: int, what: str) -> list[str]:
    """The reach of each of a head's first layers: `FULL` or `SLIDING`; as in Qwen's configs if none are named."""
    kinds, slides = given.get("layer_types"), given.get("use_sliding_window")
    if slides is None and given.get("model_type") in SWITCHED:
        slides = False
    if kinds is None or slides is False:
        last = given.get("max_window_layers") if slides else None
        return [FULL if last is None or number < last else SLIDING for number in range(layers)]
    if not isinstance(kinds, list) or len(kinds) < layers or not {*map(str, kinds[:layers])} <= {FULL, SLIDING}:
        raise ValueError(f"{what}: layer_types names {FULL} or {SLIDING} for {layers} layers, not {shown(repr(kinds))}")
    return kinds[:layers]


def rope(given: Mapping[str, Any], kinds: Collection[str], theta: float, what: str) -> dict[str, Any]:
    """Rotary parameters in transformers' names, of a head with layers of some `kinds`.

    The base is `theta` where the config has none; lengths are its own where the parameters have none.
    """
    entry = next((name for name in ("rope_scaling", "rope_parameters") if given.get(name)), "rope_scaling")
    found = given.get(entry) or {}
    if isinstance(found, Mapping) and any(isinstance(value, Mapping) for value in found.values()):
        found, *others = [found.get(kind) for kind in kinds]
        if any(other != found for other in others):
            raise ValueError(f"{what} has other rotary positions in each of its layers ({entry}), which are not read")
    if not isinstance(found, Mapping):
        raise ValueError(f"{what}: {entry} in its config is an object, and not {found!r}")
    found = {key: value for key, value in found.items() if value is not None}
    old = found.pop("type", "default")
    kind = str(found.pop("rope_type", old))
    kind = ALIASES.get(kind, kind)
    if kind not in ROTARY:
        raise ValueError(f"{what}: {unknown(f'kind of rotary positions ({entry})', kind, ROTARY)}")
    refuse_layers({"partial_rotary_factor": found.pop("partial_rotary_factor", None)}, what)
    read = {key: found.pop(key) for key in (*ROTARY[kind], "rope_theta") if key in found}
    outer = number(given, "rope_theta", theta, what)
    if given.get("rope_theta") and read.setdefault("rope_theta", outer) != outer:
        found["rope_theta"] = outer
    if found:
        warn(f"{what}: entries beside {entry} or in it that are not read: {shown(', '.join(sorted(found)))}")
    if LENGTH in ROTARY[kind]:
        read[LENGTH] = given.get(LENGTH) or read.get(LENGTH) or positive(given, LENGTHS, what)
    if kind == "dynamic" or (kind == "longrope" and "factor" not in read):
        positive(given, LENGTHS, what)
    return {"rope_type": kind, "rope_theta": outer, **read}
