"""Folders that hold no model which can be loaded: what they are, by their files, and what to name instead."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmspec.hosts.weight_files import ADAPTER, CONFIG, FILES, SAFE, STEMS, file_names, stored_tensors
from mmspec.registry import installed
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json

ORIGINAL = "name the original, with safetensors"
SIGNS = (
    (ADAPTER, "it is an adapter of PEFT: merge it into its model once, by merge_and_unload, and save that"),
    ("*.gguf", f"its weights are GGUF, for llama.cpp: {ORIGINAL}"),
    ("*.onnx", f"its weights are for ONNX: {ORIGINAL}"),
    ("*.h5", f"its weights are for TensorFlow: {ORIGINAL}"),
    ("*.msgpack", f"its weights are for Flax: {ORIGINAL}"),
    ("snapshots/*", "it is a cache of the hub: name the model, or a folder in its snapshots"),
    ("checkpoint-*/*", "it is what a training wrote: name one of its checkpoints"),
    ("*.parquet", "it is a dataset"),
    ("*/*.parquet", "it is a dataset"),
    ("*.arrow", "it is a dataset"),
    ("*.index.json", "the weights that its index names are missing: download it again"),
)
"""Files, and what a folder is that has them."""
WITHOUT = ((CONFIG, "it has a config and no weights"), ("tokenizer*", "it is a tokenizer without a model"))
"""The same, of folders without weights."""


@contextmanager
def telling(folder: Path) -> Iterator[None]:
    """Add to a refusal what a folder is that holds no model."""
    try:
        yield
    except ValueError as error:
        kind = head_of(folder) or (kind_of(folder) if folder.is_dir() else "")
        if not kind:
            raise
        raise ValueError(f"{error}; {kind}") from error


def head_of(folder: Path) -> str:
    """The words about a head's folder; "" of any other."""
    try:
        config, keys = read_json(folder / CONFIG), stored_tensors(folder, file_names(STEMS)).keys()
    except ValueError:
        return ""
    readers = [spec.name for spec in installed().components("drafter") if spec.is_for(config, keys)]
    return f"it is a head: drafter={str(folder)!r}, which {readers[0]} drafts with" if readers else ""


def kind_of(folder: Path) -> str:
    """The kind of a folder, in words; "" where its files are those of a model."""
    weights = sorted(path.name for path in folder.glob(f"*{SAFE}"))
    for sign, kind in (*SIGNS[:-1], *(() if weights else (*SIGNS[-1:], *WITHOUT))):
        if any(folder.glob(sign)):
            return kind
    if weights and not any((folder / name).is_file() for name in FILES):
        if "-of-" in weights[0]:
            return f"the index of its shards is missing ({STEMS[0]}{SAFE}.index.json): download it again"
        return f"its weights are called {shown(weights[0])}: of a head, name the method, too"
    if weights:
        part = read_json(folder / CONFIG).get("_class_name") if (folder / CONFIG).is_file() else None
        return f"it is a part of a pipeline of diffusers ({shown(part)})" if part else ""
    there = sorted(path.name for path in folder.iterdir())
    return f"it holds {shown(', '.join(there[:3]))}" if there else "it is empty"
