"""Loading models by name: shipped ones without a network, others as `from_pretrained` does.

Weights are safetensors. Pickles and code that comes with a model are refused, and so are weights that are not all there
(both libraries would go on with random numbers in their place).
"""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from mmspec import shipped

PREFIX = "mmspec/"
INDEX = "model_index.json"
"""What a folder of a whole pipeline has."""


def load_model(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal language model, in evaluation mode.

    Args:
        name: `mmspec/…` for a shipped model, a folder, or a hub name.
        device: Where to put it.
        dtype: Of the weights. Equality with unmodified decoding is promised in float32.

    Raises:
        ValueError: No such model; its weights are damaged, or a pickle.
    """
    place = locate(name)
    if (Path(place) / INDEX).is_file():
        raise ValueError(f"{name!r} is a whole pipeline, not a model: load it with mmspec.Pipeline.from_pretrained")
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            place, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    except SafetensorError as error:
        raise ValueError(f"the weights of {name!r} are damaged or truncated: {error}") from error
    except (OSError, RuntimeError) as error:
        raise ValueError(f"the model {name!r} cannot be loaded: {error}") from error
    if info["missing_keys"]:
        raise ValueError(f"the weights of {name!r} are not complete: {', '.join(sorted(info['missing_keys'])[:3])} …")
    return model.to(device).eval()


def load_parts(folder: Path, dtype: torch.dtype, without: Collection[str] = ()) -> dict[str, Any]:
    """The models of a saved pipeline, in evaluation mode; its tokenizers and settings are left to diffusers.

    Args:
        folder: It has a `model_index.json`.
        dtype: Of the weights.
        without: Parts that are there already.

    Raises:
        ValueError: A part is damaged, not complete, or of another size than its configuration; keys and shapes are
            named.
    """
    from diffusers import ModelMixin  # seconds that models of text alone need not wait

    models = {}
    for part, (library, name) in parts_of(folder).items():
        if part not in without and not (folder / part).is_dir():
            raise ValueError(f"the pipeline in {folder} is not complete: there is no folder {part}, its {name}")
        kind = getattr(sys.modules.get(library), name, None)  # as diffusers: nothing is imported on a file's word
        if part not in without and isinstance(kind, type) and issubclass(kind, ModelMixin | PreTrainedModel):
            models[part] = _part(kind, folder / part, dtype, ours=issubclass(kind, ModelMixin))
    return models


def parts_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Library and class of every part of a saved pipeline that is not left out.

    Raises:
        ValueError: The index cannot be read.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        named = {part: value for part, value in index.items() if isinstance(value, list) and len(value) == 2}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{folder / INDEX} cannot be read: {error}") from error
    return {part: (library, name) for part, (library, name) in named.items() if library is not None}


def _part(kind: Any, folder: Path, dtype: torch.dtype, ours: bool) -> Any:
    """One model of a pipeline: of diffusers' kind (`ours`) or of transformers'."""
    # Without accelerate diffusers takes this way too; and only here all misfits are listed, not the first one raised.
    own = {"torch_dtype": dtype, "low_cpu_mem_usage": False} if ours else {"dtype": dtype}
    how = {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, info = kind.from_pretrained(str(folder), **own, **how)
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
        if damage := _damage(error):
            raise ValueError(f"the weights in {folder} are damaged or truncated: {damage}") from error
        raise ValueError(f"{kind.__name__} cannot be loaded from {folder}: {error}") from error
    other = [f"{key}: {list(there)}, not {list(here)}" for key, there, here in info["mismatched_keys"]]
    found = {"missing": info["missing_keys"], "of another shape": other}
    if ours:  # transformers' encoders may come from a file that holds a decoder too
        found["unexpected"] = info["unexpected_keys"]
    problems = [f"{len(keys)} keys {what} ({_first(keys)})" for what, keys in found.items() if keys]
    if problems:
        raise ValueError(f"the weights in {folder} do not fit their {kind.__name__}: {'; '.join(problems)}")
    return model.eval()


def _damage(error: BaseException | None) -> BaseException | None:
    """What safetensors said, where it is behind an error: diffusers says no more than that a file cannot be loaded."""
    while error is not None and not isinstance(error, SafetensorError):
        error = error.__cause__ or error.__context__
    return error


def _first(keys: Collection[str]) -> str:
    return ", ".join(sorted(keys)[:3]) + ", …" * (len(keys) > 3)


def load_tokenizer(name: str) -> Any:
    """The tokenizer that belongs to a model.

    Raises:
        ValueError: No such model, or it comes without a tokenizer that can be read.
    """
    place = name if Path(name).is_dir() else locate(name)  # a tokenizer may be stored without weights
    try:
        return AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} has no tokenizer that can be read (tokenizer.json)") from error


def locate(name: str) -> str:
    """The folder of a model, or a hub name; refuses what cannot be loaded before anything is.

    Raises:
        ValueError: No such model (nearest names), or its weights are a pickle.
    """
    here = _here(name)
    if here is not None:
        return str(here)
    try:
        AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        known = ", ".join(PREFIX + known for known in shipped.assets())
        raise ValueError(
            f"no model {name!r}: neither a folder here nor to be had from the hub. Shipped: {known or 'none'}"
        ) from error
    return name


def locate_pipeline(name: str) -> Path | None:
    """The folder of a whole pipeline, if a name leads to one on this machine.

    Raises:
        ValueError: There is no shipped model of that name, or weights are a pickle.
    """
    here = _here(name)
    return here if here is not None and (here / INDEX).is_file() else None


def _here(name: str) -> Path | None:
    """The folder that a name leads to without a network."""
    if name.startswith(PREFIX):
        return shipped.asset(name.removeprefix(PREFIX))
    folder = Path(name)
    if not folder.is_dir():
        return None
    pipeline = (folder / INDEX).is_file()
    for part in sorted(p for p in folder.iterdir() if p.is_dir()) if pipeline else [folder]:
        _refuse_pickles(part)
    if not pipeline and not any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} has no *.safetensors file")
    return folder


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickles = [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)]
    if pickles:
        raise ValueError(
            f"{folder} has its weights as a pickle ({pickles[0]}), which can run code; "
            "convert them once with model.save_pretrained(..., safe_serialization=True)"
        )
