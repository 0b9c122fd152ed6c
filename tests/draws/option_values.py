"""Values of a method's options, drawn from their declarations: what stands in the annotation is all that is known."""

import random
import types
import typing
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from mmspec.registry import Pairing

FEW = 4
"""Numbers without an upper bound are mostly drawn among so many."""


def options_of(pairing: Pairing) -> dict[str, Any]:
    """Declared types of the options of drafter and rule, by the names that calls take."""
    parts = {"drafter": pairing.drafter, "rule": pairing.rule}
    found = dict[str, Any]()
    for name, part in parts.items():
        declared = part.load_options() if part is not None else None
        hints = typing.get_type_hints(declared, include_extras=True) if declared is not None else {}
        found |= {f"{name}.{field.name}": hints[field.name] for field in fields(declared)} if declared else {}
    return found


def drawn_value(hint: Any, dice: random.Random) -> Any:
    """A value that the declaration admits; None where it names no values (`Any`, texts)."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _number(parts[0], dict(_bounds(hint.__metadata__)), dice)
    if origin is typing.Literal:
        return dice.choice(parts)
    if origin in (typing.Union, types.UnionType):
        return drawn_value(dice.choice(parts), dice)
    if isinstance(origin, type) and issubclass(origin, Iterable) and ... in parts:
        return [drawn_value(parts[0], dice) for _ in range(dice.randint(1, 3))]
    return _number(hint, {}, dice)


def _number(kind: Any, bounds: dict[str, float], dice: random.Random) -> Any:
    if kind is bool:
        return dice.random() < 0.5
    low = bounds.get("ge", bounds.get("gt", 0))
    high = bounds.get("le", bounds.get("lt"))
    if kind is int:
        first = int(low) + ("gt" in bounds)
        last = first + 16 if high is None else int(high) - ("lt" in bounds)
        return dice.choice([first, min(first + dice.randrange(FEW), last), min(dice.randint(first, last), 40)])
    if kind is float:
        edges = [bounds[name] for name in ("ge", "le") if name in bounds]
        return dice.choice(
            [*edges, round(low + ((low + 4 if high is None else high) - low) * dice.uniform(0.01, 0.99), 3)]
        )
    return None


def _bounds(extras: Iterable[Any]) -> Iterable[tuple[str, float]]:
    for limit in (limit for extra in extras for limit in getattr(extra, "metadata", [extra])):
        for key in ("ge", "gt", "le", "lt"):
            if getattr(limit, key, None) is not None:
                yield key, getattr(limit, key)
