"""Forms in which the files of a head come: dtypes, one file or several, safetensors or pickles."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

DTYPES = ("float32", "float16", "bfloat16")
FORMS = ("one", "shards", "pickle", "pickles")
ONE = ("one", "pickle")
"""Forms of a file that its kit writes whole."""


def rounded(weights: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Weights as a file of this dtype holds them."""
    to = getattr(torch, dtype)
    return {key: value.to(to) if value.is_floating_point() else value for key, value in weights.items()}


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], stem: str, form: str) -> None:
    """Write a head's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("adapter_config.json" if stem == "adapter_model" else "config.json")).write_text(json.dumps(config))
    pickled = form.startswith("pickle")
    if pickled:
        stem = {"model": "pytorch_model"}.get(stem, stem)
    end = ".bin" if pickled and stem in ("pytorch_model", "adapter_model") else ".pt" if pickled else ".safetensors"
    kept = {key: value.clone().contiguous() for key, value in tensors.items()}
    if form in ("one", "pickle"):
        _save(kept, folder / f"{stem}{end}", pickled)
        return
    keys = sorted(kept)
    halves = [keys[: len(keys) // 2], keys[len(keys) // 2 :]]
    names = [f"{stem}-{number:05}-of-00002{end}" for number in (1, 2)]
    for name, half in zip(names, halves, strict=True):
        _save({key: kept[key] for key in half}, folder / name, pickled)
    where = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    (folder / f"{stem}{end}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def _save(tensors: dict[str, Tensor], path: Path, pickled: bool) -> None:
    torch.save(tensors, path) if pickled else save_file(tensors, path, metadata={"format": "pt"})
