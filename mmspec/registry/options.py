"""Option values: one frozen dataclass per component serves Python, TOML and `key=value`.

Ranges stand in the annotation (`Annotated[int, Field(ge=1)]`), help in the field's metadata (`metadata={"help": …}`).
pydantic does the checking; it is imported on first use because the command line has to start without it.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar

from mmspec.registry.suggest import unknown

T = TypeVar("T")
_SIGNS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
_WORDS = {"Any": "anything", "NoneType": "None", "ByteSize": "bytes"}  # types with another name for users


def option(default: T, help: str) -> T:
    """A field of an options dataclass, with its line of help."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True, slots=True)
class OptionHelp:
    """One line of help."""

    name: str  # the field
    allowed: str  # its type and range, in words
    default: str  # its default, as text; empty where a value is required
    help: str  # what it does


def build(options: type[T], values: Mapping[str, Any], owner: str) -> T:
    """Check values by field, and make the `owner`'s options; text is converted (`"3"` to 3) where the field is not
    text.
    """
    from pydantic import TypeAdapter, ValidationError

    names = [f.name for f in dataclasses.fields(options)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ValueError(f"{owner}: {unknown('option', name, names)}")
    try:
        return TypeAdapter(options).validate_python(dict(values))
    except ValidationError as error:
        raise ValueError("; ".join(_explain(options, owner, e) for e in error.errors())) from None


def parse(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` strings from a command line: a value in brackets or quotes as JSON; any other stays text, which
    `build` converts by the field's type.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key, text = key.strip(), text.strip()
        if not equals or not key:
            raise ValueError(f"options are written key=value, not {assignment!r}")
        if key in values:
            raise ValueError(f"option {key!r} is given twice")
        try:
            values[key] = json.loads(text) if text.startswith(("[", "{", '"')) else text
        except json.JSONDecodeError as error:
            raise ValueError(f"option {key!r}: {text!r} starts like a list but cannot be read: {error}") from None
    return values


def route(
    values: Mapping[str, Any],
    parts: Mapping[str, type | None],
    arguments: Iterable[str] = (),
    meant: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Give each flat option to the one part that declares it; returns values by part, not checked yet.

    Values are `x=…` or `rule.x=…`; a nested mapping (`{"rule": {"x": …}}`, a TOML table) is the same as the latter.
    `arguments` is what the caller takes beside options, for messages, since a misspelt argument arrives here too.
    Refuses an option that nobody declares (says what is nearest), that several do (says how to choose), or that is
    given both flat and with its part.
    """
    declares = {part: _names(options) for part, options in parts.items()}
    routed: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key, value in _flatten(values, parts):
        part, dot, name = key.rpartition(".")
        if dot and part not in parts:
            raise ValueError(unknown("part", part, parts))
        takers = [p for p in parts if name in declares[p] and part in ("", p)]
        if len(takers) > 1:
            ways = " or ".join(f"{p}.{name}=" for p in takers)
            raise ValueError(f"option {name!r} belongs to {' and '.join(takers)}; write {ways}")
        if not takers:
            there = declares[part] if part else [*chain(*declares.values()), *arguments]
            raise ValueError(unknown("option", name, there, meant))
        if name in routed[takers[0]]:
            raise ValueError(f"option {name!r} is given twice, as {name}= and as {takers[0]}.{name}=")
        routed[takers[0]][name] = value
    return routed


def explain(options: type) -> list[OptionHelp]:
    """Name, range, default and help of every option of a dataclass."""
    lines = []
    for f in dataclasses.fields(options):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        shown = "" if default is dataclasses.MISSING else repr(default)
        lines.append(OptionHelp(f.name, _allowed(options, f.name), shown, f.metadata.get("help", "")))
    return lines


def _names(options: type | None) -> list[str]:
    return [] if options is None else [f.name for f in dataclasses.fields(options)]


def _flatten(values: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if key in parts and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def _explain(options: type, owner: str, error: Any) -> str:
    if not error["loc"]:
        return f"{owner}: {error['msg'].removeprefix('Value error, ')}"
    name = str(error["loc"][0])
    if error["type"] == "missing":
        return f"{owner}: option {name!r} is required ({_allowed(options, name)})"
    inside = "".join(f"[{key!r}]" for key in error["loc"][1:] if isinstance(key, int))
    says = error["msg"].removeprefix("Value error, ")
    return f"{owner}: option {name + inside!r} is {error['input']!r}, allowed is {_allowed(options, name)} ({says})"


def _allowed(options: type, name: str) -> str:
    """Type and range in words: `int >= 1, <= 64`, `'a' or 'b'`, `list of int >= 1`."""
    return _in_words(typing.get_type_hints(options, include_extras=True)[name])


def _in_words(hint: Any) -> str:
    """A type as one would say it: `int >= 1, <= 64`, `'a' or 'b'`, `list of int >= 1`, `float or None`."""
    origin, parts = typing.get_origin(hint), [part for part in typing.get_args(hint) if part is not ...]
    if origin is typing.Annotated:
        return " ".join(filter(None, (_in_words(parts[0]), ", ".join(_bounds(hint.__metadata__)))))
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, parts))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of {' to '.join(map(_in_words, parts))}"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return f"list of {' and '.join(dict.fromkeys(map(_in_words, parts)))}"
    name = getattr(hint, "__name__", str(hint))
    return _WORDS.get(name, name)


def _bounds(extras: Iterable[Any]) -> list[str]:
    limits = [limit for extra in extras for limit in getattr(extra, "metadata", [extra])]
    return [f"{sign} {value}" for key, sign in _SIGNS for x in limits if (value := getattr(x, key, None)) is not None]
