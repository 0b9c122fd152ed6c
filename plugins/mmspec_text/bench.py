"""The methods of the benchmark: those of all language models and, for the shipped target, its trained head."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.bench.settings import METHODS

_HEAD = {"model": "mmspec/text-14m-eagle3"}
HEADS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mmspec/text-14m": {
        "eagle": {**_HEAD, "k": 3, "width": 3, "nodes": 7},
        "eagle chain": {**_HEAD, "method": "eagle", "k": 2, "form": "chain"},
    },
}
"""By target: the methods that draft with a head trained for it."""


def methods_of(model: str) -> Mapping[str, Mapping[str, Any]]:
    """The default methods for a target, by label, with their options."""
    return {**METHODS, **HEADS.get(model, {})}
