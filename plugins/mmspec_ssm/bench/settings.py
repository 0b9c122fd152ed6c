"""The methods of the benchmark: those of all language models, STree, and STree's tree and chain of the same size."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.bench.settings import DRAFTER
from mmspec.kits.text.bench.settings import METHODS as SHARED

LEVELS = 8
SAME = 7
"""The drafted nodes of the tree and the chain that are compared."""

_STREE = {"method": "stree", "drafter": DRAFTER, "k": LEVELS}
METHODS: Mapping[str, Mapping[str, Any]] = {
    **SHARED,
    "stree": _STREE,
    f"stree (tree of {SAME})": {**_STREE, "nodes": SAME},
    f"stree (chain of {SAME})": {**_STREE, "nodes": SAME, "form": "chain"},
    f"compiled stree (chain of {SAME})": {**_STREE, "method": "stree", "nodes": SAME, "form": "chain", "compile": True},
}
ONE_SHAPE: Mapping[str, Mapping[str, Any]] = {
    "stree": {"drafter": DRAFTER, "k": LEVELS, "nodes": SAME},
    **{name: SHARED[name] for name in ("prompt-lookup", "auto")},
}
"""The methods of `mmspec bench one-shape ssm`."""
