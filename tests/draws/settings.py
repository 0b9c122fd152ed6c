"""The keys of a configuration class, and values to which a draw sets them: from types, defaults and the class's source.

Nothing is listed by hand but what transformers lists: kinds of layers, rope types, activations.
"""

import inspect
import random
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LENGTH = re.compile(
    r"window|length|position|chunk|scale|block|floor|local|distance|extent|bucket|topk|budget|rate|max_"
)
"""Names of integers that may be lengths of texts."""

_BASE = frozenset(PreTrainedConfig().to_dict()) - {"chunk_size_feed_forward"}
_OTHER = re.compile(r"vision|audio|image|speech|_token|^use_cache$|initializer")
"""Parts for pictures and sound, which texts alone do not reach; ids, and how weights begin."""

_CONTEXT = re.compile(r"position|n_ctx|max_seq")

MOST, LARGE = 512, 40
"""No integer is set to more; a length of so many is large."""


def keys(config: PreTrainedConfig) -> dict[str, Any]:
    """Key → present value of a configuration; keys of the part for text and of dictionaries are `part.key`."""
    found: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if name in _BASE or _OTHER.search(name):
            continue
        if isinstance(value, dict) and "rope" not in name:
            inside = value.items() if name.endswith("_config") else ((str(key), each) for key, each in value.items())
            found |= {f"{name}.{key}": each for key, each in inside if key not in _BASE and not _OTHER.search(key)}
        else:
            found[name] = value
    return found


def another(config: PreTrainedConfig, path: str, dice: random.Random) -> Any:
    """A value for a key, other than the present one; None if there is none that would be tried."""
    present, part = keys(config)[path], config
    for name in path.split(".")[:-1]:
        part = getattr(part, name) if isinstance(getattr(part, name), PreTrainedConfig) else part
    name = path.rpartition(".")[2]
    if "rope" in name and (isinstance(present, dict) or name in ("rope_parameters", "rope_scaling")):
        return rope(part, present or {}, dice)
    values = [value for value in _values(part, name, present, dice) if value != present]
    return dice.choice(values) if values else None


def _values(config: PreTrainedConfig, name: str, present: Any, dice: random.Random) -> list[Any]:
    if isinstance(present, bool):
        return [not present]
    if isinstance(present, int):
        return list(_integers(name, present, dice))
    if isinstance(present, float):
        return [present * 2, present / 2, present * 10, present / 10, present + 1.0, 0.0, 1.0]
    if isinstance(present, str):
        return sorted(literals(type(config), name))
    if isinstance(present, list | tuple):
        return list(_lists(config, name, list(present), dice))
    return list(_instead_of_none(config, name, dice)) if present is None else []


def _integers(name: str, present: int, dice: random.Random) -> Iterator[int]:
    yield from (value for value in (present // 2, present * 2, present + 1, present - 1) if 0 <= value <= MOST)
    if LENGTH.search(name):
        yield from (short_length(dice) for _ in range(4))
    else:
        yield from (1, 2, 3)


def short_length(dice: random.Random) -> int:
    """A length that a short text reaches: most are small."""
    return dice.choice([dice.randint(2, 40), dice.randint(24, 140)])


def in_reach(known: Mapping[str, Any], dice: random.Random) -> dict[str, int]:
    """The large lengths of a configuration, of which a text of a few hundred units reaches all: it in miniature.

    A context stays as it is, since no text goes beyond it.
    """
    large = [
        key
        for key, value in known.items()
        if LENGTH.search(key) and not _CONTEXT.search(key) and type(value) is int and value >= LARGE
    ]
    # Caches grow in steps of 64 units: just beyond a step is a length of its own.
    step = 64 * dice.randint(1, 3) + dice.randint(1, 8)
    return {key: dice.choice([short_length(dice), dice.randint(60, 240), step, step]) for key in large}


def _lists(config: PreTrainedConfig, name: str, present: list[Any], dice: random.Random) -> Iterator[list[Any]]:
    if not present:
        return
    yield dice.sample(present, len(present))
    yield [present[-1]] * len(present)
    if all(isinstance(each, str) for each in present):
        kinds = sorted({*literals(type(config), name), *present})
        yield from ([dice.choice(kinds) for _ in present] for _ in range(3))
    elif all(isinstance(each, int | float) for each in present):
        yield [value for each in present for value in [dice.choice([each, 0, 1, each * 2])]]
        yield [min(float(each), dice.choice([0.1, 1.0, 10.0])) for each in present]


def _instead_of_none(config: PreTrainedConfig, name: str, dice: random.Random) -> Iterator[Any]:
    """Values of the types that the class's signature names beside None."""
    parameter = inspect.signature(type(config).__init__).parameters.get(name)
    kinds = str(parameter.annotation) if parameter is not None else ""
    if "int" in kinds:
        yield from (short_length(dice), 1, 2, 4)
    if "float" in kinds:
        yield from (0.5, 2.0)
    if "bool" in kinds:
        yield True
    if "str" in kinds:
        yield from sorted(literals(type(config), name))


@cache
def literals(kind: type[PreTrainedConfig], name: str) -> frozenset[str]:
    """The strings that stand in lines about a key, in the source of the class and of its model; activations by name."""
    if "act" in name and "attn" not in name and "attention" not in name:
        return frozenset({"relu", "gelu", "silu", "gelu_new", "relu2"} & set(ACT2FN))
    sources = [inspect.getsource(sys.modules[kind.__module__])]
    model = kind.__module__.replace(".configuration_", ".modeling_")
    if model in sys.modules:
        sources.append(inspect.getsource(sys.modules[model]))
    lines = [line for source in sources for line in source.splitlines() if re.search(rf"\b{name}\b|layer_type", line)]
    about = [line for line in lines if re.search(rf"\b{name}\b", line) or name == "layer_types"]
    words = {word for line in about for word in re.findall(r"[\"'`]([a-z][a-z0-9_]+)[\"'`]", line)}
    return frozenset(words - {name, "layer_type", "str", "int", "list", "bool", "float"})


def rope(config: PreTrainedConfig, present: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Rope parameters of any type; where kinds of layers have their own, those of one kind are changed."""
    nested = [kind for kind, value in present.items() if isinstance(value, dict)]
    if nested:
        kind = dice.choice(nested)
        return {**present, kind: rope(config, present[kind], dice)}
    axes = {name: value for name, value in present.items() if name.startswith("mrope")}
    share = dice.choice([present.get("partial_rotary_factor", 1.0), 0.5, 1.0])
    kind = dice.choice(["default", *sorted(ROPE_INIT_FUNCTIONS)])
    made = {**axes, "rope_type": kind, "rope_theta": dice.choice([present.get("rope_theta", 1e4), 100.0, 5e5])}
    if share != 1.0 or kind == "proportional":
        made["partial_rotary_factor"] = share
    if kind not in ("default", "proportional"):
        made["factor"] = dice.choice([1.5, 2.0, 4.0, 8.0])
    if kind in ("yarn", "llama3", "longrope") or (kind == "dynamic" and dice.random() < 0.5):
        made["original_max_position_embeddings"] = short_length(dice)
    if kind == "yarn":
        made |= dice.choice([{}, {"attention_factor": 1.5}, {"beta_fast": 16, "beta_slow": 2}, {"truncate": False}])
    if kind == "llama3":
        made |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope":
        heads = getattr(config, "num_attention_heads", 4)
        width = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
        half = int((width or config.hidden_size // heads) * share) // 2
        made |= {"short_factor": [1.0] * half, "long_factor": [dice.choice([2.0, 4.0]) for _ in range(half)]}
    return made
