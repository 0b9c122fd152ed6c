"""Which methods a benchmark runs: those that the user names, or those of one modality."""

from collections.abc import Collection
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
