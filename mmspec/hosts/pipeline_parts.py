"""Parts of a saved pipeline, one by one: models whose weights are all there, and tokenizers."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from mmspec.hosts.loading import load_checked, refuse_pickles
from mmspec.hosts.pipeline_index import Index
from mmspec.hosts.remote_code import refusing_code


def load_parts(index: Index, dtype: torch.dtype, without: Collection[str] = ()) -> dict[str, Any]:
    """The parts of a saved pipeline; models in evaluation mode.

    Args:
        index: What its `model_index.json` says.
        dtype: Of the weights.
        without: Parts that are there already.

    Raises:
        ValueError: A part is damaged, not complete, or of another size than its configuration; keys and shapes are
            named.
    """
    made: dict[str, Any] = {}
    for part, kind in index.parts.items():
        if part in without:
            continue
        folder = index.folder / part
        if kind is not None and not folder.is_dir():
            what = f"there is no folder {part}, its {kind.__name__}"
            raise ValueError(f"the pipeline in {index.folder} is not complete: {what}")
        if kind is None:
            made[part] = None
        elif issubclass(kind, torch.nn.Module):
            made[part] = load_part(kind, folder, dtype)
        else:
            with refusing_code(f"the {part} in {index.folder}"):
                made[part] = kind.from_pretrained(str(folder), trust_remote_code=False)
    return made


def load_part(kind: Any, folder: Path, dtype: torch.dtype) -> Any:
    """One model of a pipeline, of diffusers' kind or of transformers'.

    Args:
        kind: Its class.
        folder: It has a `config.json` and safetensors files.
        dtype: Of the weights.

    Raises:
        ValueError: As in `load_parts`; or the weights are a pickle.
    """
    refuse_pickles(folder)
    theirs = issubclass(kind, PreTrainedModel)
    # Without accelerate diffusers takes this way too.
    how = {"dtype": dtype, "trust_remote_code": False} if theirs else {"torch_dtype": dtype, "low_cpu_mem_usage": False}
    # transformers' encoders may come from a file that holds a decoder too.
    return load_checked(kind, str(folder), f"the {kind.__name__} in {folder}", how, more=theirs)
