"""Which methods a benchmark runs, by the user's names or by modality; and their options as arguments of a decoder."""

from collections.abc import Collection, Mapping
from typing import Any

from mmspec.registry import Pairing, installed, pair
from mmspec.registry.matching import named
from mmspec.report.result import PLAIN


def chosen_methods(names: str | None, more: Collection[str] = ()) -> list[str] | None:
    """The names that a user gave, checked before anything is loaded.

    Args:
        names: Names joined by commas, or None for the benchmark's default.
        more: Further names that this benchmark knows.

    Raises:
        ValueError: A name is unknown or ambiguous.
    """
    if names is None:
        return None
    chosen = names.split(",")
    for name in chosen:
        if name not in more:
            named(installed(), name)
    return chosen


def own_methods(model: Any) -> list[Pairing]:
    """The methods that fit a live model, of the plugin that its target is from; plain decoding is left out."""
    registry = installed()
    target = registry.target_for(model)
    assert target is not None
    methods = [m for m in registry.components("method") if m.owner == target.owner and m.name != PLAIN]
    paired = [pair(registry, method, offers=target.offers) for method in methods]
    return [p for p in paired if not p.missing(target.offers)]


def decoder_arguments(how: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `decoder_for` from those of `enable`: options of components are in a mapping of their own."""
    from mmspec.api.mistakes import ARGUMENTS  # with torch, which the command line does not need

    own = {name: how[name] for name in ARGUMENTS if name in how}
    return own | {"options": {name: value for name, value in how.items() if name not in own}}
