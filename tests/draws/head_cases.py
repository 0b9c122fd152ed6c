"""What a case of a head says: its config, its tensors, and what stands beside them in its files."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.draws.claim import Case
from tests.draws.head_base import NESTED, Kind
from tests.draws.head_deep import Deep
from tests.draws.head_files import rounded
from tests.draws.head_kinds import KINDS, Pathed, Rowed
from tests.support.eagle_layouts import TARGET, VOCAB


def place_of(config: Mapping[str, Any], key: str, kind: Kind) -> str:
    """Where an entry is in a config, or would be: its name, behind that of the part that it is in."""
    for part in NESTED:
        if isinstance(config.get(part), Mapping) and key in config[part]:
            return f"{part}.{key}"
    return key if key in config or not kind.nested else f"{kind.nested[0]}.{key}"


def changed(config: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """A config with other entries, by their places; None takes one out."""
    made: dict[str, Any] = json.loads(json.dumps(config))
    for place, value in entries.items():
        *outer, key = place.split(".")
        inside = made
        for part in outer:
            inside = inside.setdefault(part, {})
        inside.pop(key, None) if value is None else inside.update({key: value})
    return made


def places(config: Mapping[str, Any], outer: str = "") -> list[str]:
    """Where the entries of a config are; those inside of parts that hold entries have the part's name before theirs."""
    found = list[str]()
    for key, value in config.items():
        inside = places(value, f"{key}.") if isinstance(value, Mapping) and key in NESTED else []
        found += inside or [f"{outer}{key}"]
    return found


def value_at(config: Mapping[str, Any], place: str) -> Any:
    """The entry at a place; None where there is none."""
    found: Any = config
    for part in place.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def len_layers(kind: Kind) -> int:
    """Layers of a layout as it is."""
    numbers = [key.split(".")[1] for key in kind.weights({})[0] if key.startswith("layers.")]
    return 1 + max((int(number) for number in numbers), default=0)


def config_of(case: Case) -> dict[str, Any]:
    """The config of a case."""
    kind = KINDS[case["head"]]
    _, more = kind.weights(shape_of(case))
    entries = {place_of(kind.config, key, kind): value for key, value in more.items()}
    own = {key.removeprefix("config."): value for key, value in case.items() if key.startswith("config.")}
    return changed(kind.config, {**entries, **own})


def shape_of(case: Case) -> dict[str, Any]:
    return {key.removeprefix("shape."): value for key, value in case.items() if key.startswith("shape.")}


def tensors(case: Case) -> dict[str, Tensor]:
    """The tensors of a case, by our names."""
    w, _ = KINDS[case["head"]].weights(shape_of(case))
    w.pop(case.get("tensor.lack", ""), None)
    return w


def stored(case: Case) -> dict[str, Tensor]:
    """The tensors of a case as its files hold them."""
    return rounded(tensors(case), case.get("dtype", "float32"))


HARMLESS_TENSORS = ("layers.0.self_attn.k_scale", "layers.0.input_layernorm.weight", "equal copy")
"""Tensors beside a head's own that change nothing; EAGLE-1's class has no such norm in the first layer."""


def more_tensors(kind: Kind) -> list[str]:
    """Tensors that a file may have beside its own: of these some change nothing, and others are to be named."""
    first = [] if HARMLESS_TENSORS[1] in kind.weights({})[0] else [HARMLESS_TENSORS[1]]
    first = first if isinstance(kind, Rowed) and not kind.fused else []
    copies = ["equal copy", "other copy", "other copy"] if kind.copies or kind.may_repeat else []
    rowed = [*HARMLESS_TENSORS[:1], *first] if isinstance(kind, Rowed) and kind.family == "eagle" else []
    return [*rowed, *copies, "0.odd.weight"]


def keys_of(case: Case) -> set[str]:
    """The keys in the files of a case."""
    kind, w = KINDS[case["head"]], tensors(case)
    return {*map(kind.named, w), *kind.extra, *kind.lent, *kind.copies, *extras(case, w)}


def extras(case: Case, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors beside a head's own."""
    kind, found = KINDS[case["head"]], dict[str, Tensor]()
    if "tensor.odd" in case:
        beside = kind.named(case["tensor.odd"]).rpartition(".")[0]
        found[f"{beside}.odd" if beside else "odd.weight"] = torch.ones(2)
    more = case.get("tensor.more")
    if more in ("equal copy", "other copy"):
        off = 0.5 if more == "other copy" else 0
        found |= {key: w[of] + off for key, of in kind.copies.items() if of in w}
        found |= {key: value + off for key, value in kind.may_repeat.items()}
    elif more:
        shape = (TARGET,) if more.endswith("norm.weight") else (1,) if more.endswith("scale") else (VOCAB, 4)
        found[prefix(kind) + kind.named(more)] = torch.full(shape, 5.0)
    return found


def prefix(kind: Kind) -> str:
    """What all keys of a head begin with that may be stored beside its target's."""
    if isinstance(kind, Deep):
        return kind.layout.place(kind.layout.block, 0)
    firsts = {key.partition(".")[0] for key in kind.weights({})[0]} - {"token_map"}
    return f"{firsts.pop()}." if isinstance(kind, Pathed) and len(firsts) == 1 else ""
