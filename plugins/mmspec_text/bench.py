"""The subjects of benchmarks: methods of language models."""

from collections.abc import Mapping
from typing import Any

from mmspec.kits.text.bench.settings import DRAFTER, METHODS

OWN: Mapping[str, Mapping[str, Any]] = {
    "sequoia": {"k": 3, "drafter": DRAFTER, "nodes": 7},
    "llmcad": {"k": 4, "drafter": DRAFTER, "width": 2, "nodes": 7},
    "s2d": {"k": 4, "drafter": DRAFTER},
    "dyspec": {"k": 3, "drafter": DRAFTER, "form": "greedy", "width": 3, "nodes": 7},
    "bild": {"k": 4, "drafter": DRAFTER},
    "jacobi-text": {"k": 5},
    "lookahead": {"k": 4, "n": 3, "guesses": 2},
    "triforce": {"k": 6, "budget": 128},
}
"""Methods for attention models alone, with options that are fast on two cores.

`pearl`, `saguaro` and `mirror-sd` have no rows: their process takes a core, and everything here is measured with
all of them.
`ambedkar` has none: its text is not plain decoding's, and it is as fast as `draft-model` on a longer prompt.
`rapid` has none: it is for prompts of many thousand tokens, and those of the benchmark are short.
`judge` has none: its speed is its judge's, which is trained on answers that the user has.
`rest` and `rasd` have none either: what they gain is decided by the datastore, which is the user's.
`vocab-trim` has none: what it gains is decided by its corpus, which is the user's, or by earlier calls, and here each
call begins anew.
`omnidraft` has none: it is for a draft model with another tokenizer, and both shipped models have the same.
`assd` has none: it fills blanks with an any-order model, and no such model is shipped.
"""
_EAGLE = {"method": "eagle", "model": "mmspec/text-14m-eagle3"}
_SMOLLM2 = {"method": "eagle", "model": "mmspec/smollm2-eagle3"}
_TREE = {"k": 3, "width": 3, "nodes": 7}
_CHAIN = {"k": 2, "form": "chain"}
FITTED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mmspec/text-14m": {
        "eagle": {**_EAGLE, **_TREE},
        "layer-skip": {"k": 2},
        "swift": {"k": 4, "nodes": 7, "sure": 0.3},
        "del": {"k": 4},
        "specmemo": {"drafter": DRAFTER, "memory_budget": "8MB", **_TREE},
        "compiled eagle": {**_EAGLE, "k": 2, "width": 2, "nodes": 3, "compile": True},
        "compiled eagle chain": {**_EAGLE, **_CHAIN, "compile": True},
    },
    "smollm2": {
        "eagle": {**_SMOLLM2, **_TREE},
        "eagle chain": {**_SMOLLM2, **_CHAIN},
        "compiled eagle chain": {**_SMOLLM2, **_CHAIN, "compile": True},
    },
}
"""By target: methods whose options are the model's: a head for it, its layers, which must be several, or its bytes."""


def methods_of(model: str) -> Mapping[str, Mapping[str, Any]]:
    """The default methods for a target, by label, with their options.

    A model that does not ship has another tokenizer than the shipped draft model: methods with one are left out.
    """
    common = {
        label: how for label, how in {**METHODS, **OWN}.items() if model.startswith("mmspec/") or "drafter" not in how
    }
    return {**common, **FITTED.get(model, {})}
