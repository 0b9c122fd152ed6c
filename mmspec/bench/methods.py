"""Which methods a benchmark of one modality tries, unless it is told."""

from typing import Any

from mmspec.registry import Pairing, fits, installed, pair
from mmspec.report.result import PLAIN


def own_methods(model: Any) -> list[Pairing]:
    """Methods of the plugin whose target a live model has, as far as they fit it; without plain decoding."""
    registry = installed()
    target = registry.target_for(model)
    assert target is not None
    methods = [m for m in registry.components("method") if m.owner == target.owner and m.name != PLAIN]
    paired = [pair(registry, method, offers=target.offers) for method in methods]
    return [p for p in paired if not fits(p, target.offers)]
