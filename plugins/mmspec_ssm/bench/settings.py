"""What runs beside the methods that benchmarks of language models share: our own, and its tree beside its chain."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.bench.settings import DRAFTER
from mmspec.kits.text.bench.settings import METHODS as SHARED

LEVELS = 8
SAME = 7
"""Nodes that tree and chain draft where they are compared."""

_STREE = {"method": "stree", "drafter": DRAFTER, "k": LEVELS}
METHODS: Mapping[str, Mapping[str, Any]] = {
    **SHARED,
    "stree": _STREE,
    f"stree (tree of {SAME})": {**_STREE, "nodes": SAME},
    f"stree (chain of {SAME})": {**_STREE, "nodes": SAME, "shape": "chain"},
}
