"""The subjects of benchmarks: the methods of language models, and STree."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.bench.settings import DRAFTER
from mmspec.kits.text.bench.settings import METHODS as SHARED

LEVELS = 8
SAME = 7  # the drafted nodes of the tree and the chain that are compared

_STREE = {"method": "stree", "drafter": DRAFTER, "k": LEVELS}
METHODS: Mapping[str, Mapping[str, Any]] = {
    **SHARED,
    "stree": _STREE,
    f"stree (tree of {SAME})": {**_STREE, "nodes": SAME},
    f"stree (chain of {SAME})": {**_STREE, "nodes": SAME, "form": "chain"},
    f"compiled stree (chain of {SAME})": {**_STREE, "method": "stree", "nodes": SAME, "form": "chain", "compile": True},
}
_EAGLE = {"method": "eagle", "model": "mmspec/ssm-5m-eagle3"}
HEADS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mmspec/ssm-5m": {
        "eagle": {**_EAGLE, "k": 3, "width": 3, "nodes": 7},
        "compiled eagle": {**_EAGLE, "k": 2, "width": 2, "nodes": 3, "compile": True},
    },
}
"""By target: the methods that draft with a head trained for it."""


def methods_of(model: str) -> Mapping[str, Mapping[str, Any]]:
    """The default methods for a target, by label, with their options."""
    return {**METHODS, **HEADS.get(model, {})}
