"""The values that fields of a spec may hold: each is checked once, as the spec is written down, by the field's name."""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from mmspec.registry.printable import refuse_control

#: From the strongest promise to none.
EXACTNESS = ("invariant", "lossless", "lossy", "synthetic")
NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_REFERENCE = re.compile(rf"({NAME.pattern}:)?{NAME.pattern}")
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check(spec: Any, whose: str) -> None:
    """Replace every field of a frozen dataclass by a checked copy; `whose` says what it is, for messages."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        allowed_empty = value is None or value == ""
        if field.name in CHECKS and not (allowed_empty and field.default == value):
            object.__setattr__(spec, field.name, CHECKS[field.name](value, f"{whose}: {field.name}"))


def imported(path: str, whose: str) -> Any:
    """The object at `"module:Attribute"`."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{whose} should be at {path!r}, which cannot be imported: {error}") from error


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"a component's name is lower-case words joined by '-', '.' or '_', not {value!r}")
    return value


def _reference(value: Any, what: str) -> str:
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value):
        raise ValueError(f"{what} is a component's name, or plugin:name, not {value!r}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is a text, not {value!r}")
    refuse_control(value, what)
    return value


def _summary(value: Any, what: str) -> str:
    if not 0 < len(_text(value, what)) <= 80:
        raise ValueError(f"{what} has 1 to 80 characters, this one {len(value)}")
    return str(value)


def _path(value: Any, what: str) -> str:
    if not isinstance(value, str) or not _PATH.fullmatch(value):
        raise ValueError(f"{what} is written 'module:Name', not {value!r}")
    return value


def _words(value: Any, what: str) -> frozenset[str]:
    # A bare string is iterable too, and would pass as a set of letters.
    if isinstance(value, str) or not all(isinstance(word, str) and NAME.fullmatch(word) for word in value):
        raise ValueError(f"{what} is a set of lower-case words, not {value!r}")
    return frozenset(value)


def _classes(value: Any, what: str) -> frozenset[str]:
    if isinstance(value, str) or not all(isinstance(name, str) and name.isidentifier() for name in value):
        raise ValueError(f"{what} is a set of names of classes, not {value!r}")
    return frozenset(value)


def _sentences(value: Any, what: str) -> Mapping[str, str]:
    said = dict(value)
    _words(said, what)
    return MappingProxyType({word: _text(sentence, f"{what}[{word!r}]") for word, sentence in said.items()})


def _exactness(value: Any, what: str) -> str:
    if value not in EXACTNESS:
        raise ValueError(f"{what} is one of {', '.join(EXACTNESS)}; not {value!r}")
    return str(value)


def _budget(value: Any, what: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{what} is an integer >= 1, not {value!r}")
    return value


CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "name": _name,
    "method": _name,
    "summary": _summary,
    "paper": _text,
    "why": _text,
    "wrt": _text,
    "factory": _path,
    "options": _path,
    "pipeline": _path,
    "fits": _path,
    "reads": _path,
    "needs": _words,
    "offers": _words,
    "words": _sentences,
    "asks": _sentences,
    "architectures": _classes,
    "exactness": _exactness,
    "k": _budget,
    "drafter": _reference,
    "rule": _reference,
    "defaults": lambda value, what: MappingProxyType(dict(value)),
    "on_accelerator": lambda value, what: MappingProxyType(dict(value)),
    "default_methods": lambda value, what: tuple(value),
}
