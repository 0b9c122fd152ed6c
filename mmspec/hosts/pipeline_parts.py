"""The parts of a saved pipeline: models with all their weights, tokenizers and processors."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from mmspec.hosts.loading import load_checked, refuse_pickles
from mmspec.hosts.pipeline_index import Index
from mmspec.hosts.remote_code import refusing_code


def load_parts(index: Index, dtype: torch.dtype, without: Collection[str] = ()) -> dict[str, Any]:
    """The parts of a saved pipeline by name; models are in evaluation mode.

    Args:
        index: The content of its `model_index.json`.
        dtype: The dtype of the weights.
        without: Names of parts that are not loaded.

    Raises:
        ValueError: A part is damaged, incomplete, or does not fit its config; the message names keys and shapes.
    """
    parts: dict[str, Any] = {}
    for part, kind in index.parts.items():
        if part in without:
            continue
        folder = index.folder / part
        if kind is not None and not folder.is_dir():
            what = f"there is no folder {part}, its {kind.__name__}"
            raise ValueError(f"the pipeline in {index.folder} is not complete: {what}")
        if kind is None:
            parts[part] = None
        elif issubclass(kind, torch.nn.Module):
            parts[part] = load_part(kind, folder, dtype)
        else:
            with refusing_code(f"the {part} in {index.folder}"):
                parts[part] = kind.from_pretrained(str(folder), trust_remote_code=False)
    return parts


def load_part(kind: Any, folder: Path, dtype: torch.dtype) -> Any:
    """One model of a pipeline.

    Args:
        kind: The model's class, of diffusers or transformers.
        folder: A folder with a `config.json` and safetensors files.
        dtype: The dtype of the weights.

    Raises:
        ValueError: The weights are a pickle, damaged, incomplete, or do not fit the config.
    """
    refuse_pickles(folder)
    how: dict[str, Any] = {"torch_dtype": dtype, "low_cpu_mem_usage": False}  # as diffusers does without accelerate
    of_transformers = issubclass(kind, PreTrainedModel)
    if of_transformers:
        how = {"dtype": dtype, "trust_remote_code": False}
    # An encoder of transformers may be stored in a file that also holds a decoder.
    return load_checked(kind, str(folder), f"the {kind.__name__} in {folder}", how, more=of_transformers)
