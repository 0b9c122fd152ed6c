"""Entries of a head's config: what they must be, and what is said where they are something else.

That is a `ValueError` with the head (`what`), the entry and what was found there.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformers.activations import ACT2FN

from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown

ACTIVATIONS = ("hidden_act", "hidden_activation")
"""Names that configs have for the activation of an MLP."""


def positive(given: Mapping[str, Any], name: str, what: str) -> int:
    """A whole number above 0 that the config must have."""
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what}: its config has no number {name}, but {value!r}")
    return value


def asked_length(given: Mapping[str, Any], what: str) -> int | None:
    """Units per draft that a config of speculators asks for, from 1 to 512; None where it names none."""
    config = given.get("speculators_config")
    methods = config.get("proposal_methods") if isinstance(config, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    asked = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    if asked is not None and (type(asked) is not int or not 1 <= asked <= 512):
        raise ValueError(f"{what}: speculative_tokens in its config is from 1 to 512, and not {shown(repr(asked))}")
    return asked


def number(given: Mapping[str, Any], name: str, default: float, what: str) -> float:
    """A number above 0 that the config may have."""
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{what}: {name} in its config is a number above 0, and not {value!r}")
    return float(value)


def activation(given: Mapping[str, Any], what: str) -> str:
    """The activation of the MLPs, one that transformers has, by its name; SiLU where the config names none."""
    named = list(dict.fromkeys(str(given[name]) for name in ACTIVATIONS if given.get(name) is not None)) or ["silu"]
    if len(named) > 1:
        raise ValueError(f"{what}: its config names two activations, {' and '.join(map(shown, named))}")
    if named[0] not in ACT2FN:
        raise ValueError(f"{what}: {unknown('activation', named[0], [*ACT2FN])}")
    return named[0]


def architectures(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of models in a config."""
    named = given.get("architectures")
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def drafted_ids(given: Mapping[str, Any], own: int | None, vocab: int, what: str) -> int:
    """Rows of the output layer.

    `own` are the rows of the head's own layer, None if it has none; `vocab` counts where the config says nothing else.
    """
    named = positive(given, "draft_vocab_size", what) if given.get("draft_vocab_size") is not None else None
    if own is not None and named is not None and own != named:
        raise ValueError(f"{what}: its config has draft_vocab_size {named}, and lm_head.weight has {own} rows")
    drafted = own or named or vocab
    if drafted > vocab:
        raise ValueError(
            f"{what} scores {drafted} ids, and its target has {vocab} (vocab_size): a head of another target"
        )
    return drafted


def part_numbers(keys: Iterable[str], prefix: str, place: int = 1) -> set[int]:
    """The numbers at a place of keys that begin so: of `cells.2.norm`, 2 is at place 1."""
    found = (key.split(".") for key in keys if key.startswith(prefix))
    return {int(parts[place]) for parts in found if len(parts) > place and parts[place].isdecimal()}


def counted(found: Collection[int], given: Mapping[str, Any], names: tuple[str, ...], what: str) -> int:
    """The number of a head's parts: as many as its files hold.

    `found` are the numbers of the parts in its files. The first of `names` in the config may name more, and too few.
    """
    named = next((positive(given, name, what) for name in names if given.get(name) is not None), 0)
    missing = next(part for part in range(len(found) + 1) if part not in found)
    wanted = max(max(found, default=0) + 1, named)
    if missing < wanted:
        said = f" ({' or '.join(names)})" if names else ""
        raise ValueError(f"{what} has no part {missing} of {wanted}{said}")
    return len(found)


def renamed(key: str, beginnings: Mapping[str, str]) -> str:
    """A key with another beginning, if `beginnings` says what its own is called here."""
    for old, new in beginnings.items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def split_heads(given: Mapping[str, Any], queries: int, keys: int, what: str) -> tuple[int, int]:
    """The number of attention heads, and the numbers of each, where a row's queries and keys have so many numbers."""
    heads = positive(given, "num_attention_heads", what)
    head_dim = queries // heads if queries % heads == 0 else 0
    if not head_dim or keys % head_dim:
        raise ValueError(f"{what}: {queries} and {keys} numbers of queries and keys are not {heads} equal heads")
    return heads, head_dim


def numbered_ids(given: Mapping[str, Any], name: str, what: str) -> tuple[int, ...]:
    """Layer ids that the config may name, a list; () where it names none."""
    ids = given.get(name) or ()
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        raise ValueError(f"{what}: {name} are numbers, got {ids!r}")
    return tuple(ids)
