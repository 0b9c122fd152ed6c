"""Which methods a benchmark tries: those that it is told, or those of one modality."""

from collections.abc import Collection
from typing import Any

from mmspec.registry import Pairing, installed, pair
from mmspec.registry.matching import named
from mmspec.report.result import PLAIN


def told(names: str | None, more: Collection[str] = ()) -> list[str] | None:
    """What a user chose, before anything is loaded for it.

    Args:
        names: Names joined by commas, or None for the benchmark's own choice.
        more: What the benchmark calls contestants of its own.

    Raises:
        ValueError: One is unknown or ambiguous.
    """
    if names is None:
        return None
    chosen = names.split(",")
    for name in chosen:
        if name not in more:
            named(installed(), name)
    return chosen


def own_methods(model: Any) -> list[Pairing]:
    """Methods of the plugin whose target a live model has, as far as they fit it; without plain decoding."""
    registry = installed()
    target = registry.target_for(model)
    assert target is not None
    methods = [m for m in registry.components("method") if m.owner == target.owner and m.name != PLAIN]
    paired = [pair(registry, method, offers=target.offers) for method in methods]
    return [p for p in paired if not p.missing(target.offers)]
