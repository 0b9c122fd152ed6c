"""Loading models by name: shipped ones without a network, others as `from_pretrained` does.

Weights are safetensors. Pickles and code that comes with a model are refused, and so are weights that are not all there
(both libraries would go on with random numbers in their place), or that are more than the model has.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import cached_file

from mmspec import shipped
from mmspec.hosts.devices import refuse_device
from mmspec.hosts.pipeline_index import INDEX
from mmspec.hosts.remote_code import config_of, processor_of, refusing_code, tokenizer_of
from mmspec.hosts.weight_files import (
    ADAPTER,
    CONFIG,
    ENDS,
    STEMS,
    differences,
    refuse_config,
    refuse_mismatch,
    stored_tensors,
    unexpected_keys,
    weight_files,
)
from mmspec.registry.printable import shown

PREFIX = "mmspec/"


def load_model(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal language model, in evaluation mode.

    Args:
        name: `mmspec/…` for a shipped model, a folder, or a hub name.
        device: Where to put it.
        dtype: Of the weights. Equality with unmodified decoding is promised in float32.

    Raises:
        ValueError: No such model; its weights are damaged, a pickle, integers, or not those that its config says.
    """
    refuse_device(device)
    return load_as(AutoModelForCausalLM, name, dtype).to(device)


def load_as(kind: Any, name: str, dtype: torch.dtype) -> Any:
    """A model of transformers, in evaluation mode.

    Args:
        kind: `AutoModelForCausalLM`, or a class of models.
        name: As of `load_model`.
        dtype: Of the weights.

    Raises:
        ValueError: As in `load_model`.
    """
    place = locate(name)
    if (Path(place) / INDEX).is_file():
        raise ValueError(f"{name!r} is a whole pipeline, not a model: load it with mmspec.Pipeline.from_pretrained")
    return load_checked(kind, place, f"the model {name!r}", {"dtype": dtype, "trust_remote_code": False})


def load_checked(kind: Any, place: str, what: str, how: dict[str, Any], more: bool = False) -> Any:
    """A model whose config and files were compared before it is built, and whose weights are all there.

    Args:
        kind: A class of transformers or diffusers, or `AutoModelForCausalLM`.
        place: A folder, or a hub name.
        what: What it is called in messages.
        how: Arguments of its `from_pretrained`.
        more: Its files may hold weights that it has no use for.

    Raises:
        ValueError: Its files are damaged or others than its config says; keys and shapes are named.
    """
    folder = fetched(place)
    stored = stored_tensors(folder)
    if not stored:
        files = " and no ".join(stem + ENDS[0] for stem in STEMS)
        raise ValueError(f"{what} cannot be loaded: there is no {files} in {folder}")
    config = refuse_config(folder, stored)
    # Only so all misfits are listed, not the first one raised.
    how = {**how, "use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with refusing_code(what), torch.device("meta"):
        outlined = unloaded(kind, place)
    refuse_mismatch(outlined, config, stored, what)
    with refusing_code(what):
        model, info = kind.from_pretrained(place, **how)
    other = [f"{key}: {list(there)}, not {list(here)}" for key, there, here in info["mismatched_keys"]]
    unexpected = [] if more else unexpected_keys(model, info["unexpected_keys"], config, stored)
    if wrong := differences(missing=info["missing_keys"], of_another_shape=other, unexpected=unexpected):
        raise ValueError(f"the weights of {what} do not fit their {type(model).__name__}: {wrong}")
    return model.eval()


def unloaded(kind: Any, place: str) -> Any:
    """The model that a config asks for, with random weights; arguments as in `load_checked`."""
    if kind is AutoModelForCausalLM:
        return AutoModelForCausalLM.from_config(config_of(place), trust_remote_code=False)
    if issubclass(kind, PreTrainedModel):
        return kind(kind.config_class.from_pretrained(place))
    return kind.from_config(kind.load_config(place))


def load_tokenizer(name: str) -> Any:
    """The tokenizer that belongs to a model.

    Raises:
        ValueError: No such model, or it comes without a tokenizer that can be read.
    """
    place = name if Path(name).is_dir() else locate(name)  # a tokenizer may be stored without weights
    try:
        return tokenizer_of(place)
    except ValueError as error:
        raise ValueError(f"{name!r} has no tokenizer that can be read (tokenizer.json): {shown(error)}") from error


def load_processor(name: str) -> Any:
    """The processor that belongs to a model.

    Raises:
        ValueError: No such model, or it comes without a processor that can be read.
    """
    return processor_of(name if Path(name).is_dir() else locate(name))


def locate(name: str) -> str:
    """The folder of a model, or a hub name; refuses what cannot be loaded before anything is.

    Raises:
        ValueError: No such model (nearest names), or its weights are a pickle.
    """
    here = _here(name)
    if here is not None:
        return str(here)
    try:
        cached_file(name, CONFIG)
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


def fetched(place: str) -> Path:
    """The folder of a model, with its config and its weights in it; what the hub has is fetched, and not read yet.

    Raises:
        ValueError: The hub does not have it, or it has no safetensors.
    """
    if Path(place).is_dir():
        return Path(place)
    with refusing_code(f"the model {place!r}"):
        folder = Path(cached_file(place, CONFIG)).parent
        cached_file(place, ADAPTER, _raise_exceptions_for_missing_entries=False)
        for file in (f"{stem}{end}" for end in ENDS for stem in STEMS):
            if cached_file(place, file, _raise_exceptions_for_missing_entries=False) is not None:
                for path in weight_files(folder):
                    cached_file(place, path.name)
                return folder
    raise ValueError(f"the model {place!r} has no safetensors files")


def _here(name: str) -> Path | None:
    """The folder that a name leads to without a network."""
    if name.startswith(PREFIX):
        return shipped.asset(name.removeprefix(PREFIX))
    folder = Path(name)
    try:
        if not folder.is_dir():
            return None
    except OSError as error:  # a name that no file can have
        raise ValueError(f"{shown(name)} is no name of a model: {error.strerror}") from error
    pipeline = (folder / INDEX).is_file()
    for part in sorted(p for p in folder.iterdir() if p.is_dir()) if pipeline else [folder]:
        refuse_pickles(part)
    if not pipeline and not any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} has no *.safetensors file")
    return folder


def refuse_pickles(folder: Path) -> None:
    """Refuse a folder that has its weights as a pickle only.

    Raises:
        ValueError: Names the file.
    """
    if any(folder.glob("*.safetensors")):
        return
    pickles = [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)]
    if pickles:
        raise ValueError(
            f"{folder} has its weights as a pickle ({pickles[0]}), which can run code; "
            "convert them once with model.save_pretrained(..., safe_serialization=True)"
        )
