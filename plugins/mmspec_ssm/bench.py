"""What benchmarks measure: the methods of language models, STree, and a model of published size with random weights."""

from collections.abc import Mapping
from typing import Any

from mmspec.bench.core.shape import Shape
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


SHAPES = (
    Shape(
        "mamba2-2.7b",
        "mmspec.bench.core.shape:language",
        {
            "config": "Mamba2Config", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64,
            "state_size": 128, "n_groups": 1, "vocab_size": 50288, "tie_word_embeddings": True,
            "initializer_range": 0.02,  # 0.1 makes rounding in bfloat16 an eighth of logits at this width
        },
        {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "state_size": 8, "vocab_size": 512},
    ),
)  # fmt: skip
"""Mamba-2 (arXiv 2405.21060)."""
