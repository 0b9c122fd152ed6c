"""Loading models by name: shipped ones without a network, others as `from_pretrained` does.

Weights of models are safetensors, and pickles are refused; a drafter's head may be a pickle, of which no code is run.
Code that comes with a model is refused. So are missing weights (transformers and diffusers would continue with
random numbers) and weights for which the model has no place.
"""

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoProcessor, AutoTokenizer, PreTrainedModel
from transformers.utils import cached_file

from mmspec import packaged, shipped
from mmspec.hosts.devices import refuse_device
from mmspec.hosts.pickles import PICKLED
from mmspec.hosts.remote_code import read_auto, refusing_code
from mmspec.hosts.strangers import kind_of, telling
from mmspec.hosts.weight_files import (
    ADAPTER,
    CONFIG,
    FILES,
    INDEX,
    SAFE,
    STEMS,
    align_weights,
    differences,
    file_names,
    refuse_config,
    refuse_mismatch,
    stored_tensors,
    unexpected_keys,
    weight_files,
)
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json

PREFIX = "mmspec/"
OF_TRAINING = ("optimizer", "rng_state", "scaler", "scheduler", "training_args")
"""Beginnings of the names of pickles that a trainer writes beside weights."""


def load_model(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal language model at `mmspec/…`, a folder or a hub name, in evaluation mode; refuses weights that are
    damaged, a pickle, integers, or do not fit their config. Equality with unmodified decoding is promised in float32.
    """
    refuse_device(device)
    return load_as(AutoModelForCausalLM, name, dtype).to(device)


def load_as(kind: Any, name: str, dtype: torch.dtype, more: bool = False) -> Any:
    """A model of transformers, of a class or `AutoModelForCausalLM`, in evaluation mode; names and errors as in
    `load_model`, and `more` as in `load_checked`.
    """
    place = locate(name)
    if (Path(place) / INDEX).is_file():
        raise ValueError(f"{name!r} is a whole pipeline, not a model: load it with mmspec.Pipeline.from_pretrained")
    return load_checked(kind, place, f"the model {name!r}", {"dtype": dtype, "trust_remote_code": False}, more)


def load_checked(kind: Any, place: str, what: str, how: dict[str, Any], more: bool = False) -> Any:
    """A model with all its weights, built after its config and its files were compared; refuses what differs, by keys
    and shapes.

    `kind` is a class of transformers or diffusers, or `AutoModelForCausalLM`, and `how` the arguments of its
    `from_pretrained`. With `more`, the files may hold weights for which the model has no place.
    """
    with telling(Path(place)):
        return _loaded(kind, place, what, how, more)


def _loaded(kind: Any, place: str, what: str, how: dict[str, Any], more: bool) -> Any:
    folder = fetched(place)
    stored = stored_tensors(folder)
    if not stored:
        files = " and no ".join(stem + SAFE for stem in STEMS)
        raise ValueError(f"{what} cannot be loaded: there is no {files} in {folder}")
    config = refuse_config(folder, stored)
    # With ignore_mismatched_sizes all mismatches are listed; otherwise the first one is raised.
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
    align_weights(model)
    return model.eval()


def unloaded(kind: Any, place: str) -> Any:
    """The model that the config at `place` describes, with random weights; for the arguments see `load_checked`."""
    if kind is AutoModelForCausalLM:
        config = read_auto(AutoConfig, place)
        if type(config) not in AutoModelForCausalLM._model_mapping:
            named = " or ".join(config.architectures or ()) or "its own class"
            raise ValueError(
                f"transformers has no causal language model for {config.model_type!r}: load it with {named} and give "
                "the live model to mmspec.enable, or to a pipeline of its plugin"
            )
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    if issubclass(kind, PreTrainedModel):
        return kind(kind.config_class.from_pretrained(place))
    return kind.from_config(kind.load_config(place))


def load_part(kind: Any, folder: Path, dtype: torch.dtype) -> Any:
    """One model of a pipeline, from a folder with a `config.json` and safetensors files; refuses what does not fit the
    config.
    """
    refuse_pickles(folder)
    how: dict[str, Any] = {"torch_dtype": dtype, "low_cpu_mem_usage": False}  # as diffusers does without accelerate
    of_transformers = issubclass(kind, PreTrainedModel)
    if of_transformers:
        how = {"dtype": dtype, "trust_remote_code": False}
    # An encoder of transformers may be stored in a file that also holds a decoder.
    return load_checked(kind, str(folder), f"the {kind.__name__} in {folder}", how, more=of_transformers)


def load_tokenizer(name: str) -> Any:
    """The tokenizer that is stored with a model; refuses one that cannot be read."""
    place = name if Path(name).is_dir() else locate(name)  # a folder may hold a tokenizer without weights
    try:
        tokenizer = read_auto(AutoTokenizer, place)
    except ValueError as error:
        raise ValueError(f"{name!r} has no tokenizer that can be read (tokenizer.json): {shown(error)}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes some of nothing
        raise ValueError(f"{name!r} has no tokenizer (tokenizer.json)")
    return tokenizer


def load_processor(name: str) -> Any:
    """The processor that is stored with a model."""
    return read_auto(AutoProcessor, name if Path(name).is_dir() else locate(name))


def locate(name: str, pickles: bool = False) -> str:
    """The folder of a model, or its hub name, after a check that it can be loaded, with `pickles` also of these."""
    folder = local_folder(name, pickles)
    if folder is not None:
        return str(folder)
    try:
        cached_file(name, CONFIG)
    except (OSError, ValueError) as error:
        known = ", ".join(PREFIX + known for known in shipped.assets())
        raise ValueError(
            f"no model {name!r}: neither a folder here nor to be had from the hub. Shipped: {known or 'none'}"
        ) from error
    return name


def fetched(place: str, names: Sequence[str] = FILES) -> Path:
    """The folder with a model's config and weights; files on the hub are downloaded, and not read yet."""
    folder = indexed(place, names=names)
    fetch_files(place, [path.name for path in weight_files(folder, names)])
    return folder


def indexed(place: str, revision: str | None = None, names: Sequence[str] = FILES) -> Path:
    """The folder with a model's config and its file of weights, or the index of several; these are not downloaded.

    `revision` is a branch or commit on the hub; None: the latest.
    """
    if Path(place).is_dir():
        return Path(place)
    with refusing_code(f"the model {place!r}"):
        folder = Path(cached_file(place, CONFIG, revision=revision)).parent
        cached_file(place, ADAPTER, revision=revision, _raise_exceptions_for_missing_entries=False)
        for file in names:
            found = cached_file(place, file, revision=revision, _raise_exceptions_for_missing_entries=False)
            if found is not None:
                return folder
    others = ", ".join(name for name in names if SAFE not in name)
    none = f" and none of {others}" if others else ""
    raise ValueError(
        f"the model {place!r} has no safetensors files{none}; if it has pickles under other names, download them and "
        f"convert them once: safetensors.torch.save_file(torch.load(<file>, weights_only=True), {FILES[0]!r})"
    )


def header(name: str) -> tuple[dict[str, Any], Collection[str]]:
    """The config of a stored model or head, and the names of its tensors; nothing is built, and no tensor is read."""
    names = file_names(STEMS)
    folder = fetched(locate(name, pickles=True), names)
    return (read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}), stored_tensors(folder, names).keys()


def architectures(name: str) -> list[str]:
    """The classes that the config of a stored model names; no weights are read."""
    place = locate(name)
    file = Path(place) / CONFIG if Path(place).is_dir() else Path(cached_file(place, CONFIG))
    named = read_json(file).get("architectures") if file.is_file() else None
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def fetch_files(place: str, names: Collection[str], revision: str | None = None) -> None:
    """Download files of a model, if it is on the hub; for the arguments see `indexed`."""
    if not Path(place).is_dir():
        with refusing_code(f"the model {place!r}"):
            for name in names:
                cached_file(place, name, revision=revision)


def local_folder(name: str, pickles: bool = False) -> Path | None:
    """The folder that a name means without a network, of a model or a pipeline; None for a hub name. Refuses a model
    without safetensors, but with `pickles` allows these.
    """
    if name.startswith(PREFIX):
        return shipped.asset(name.removeprefix(PREFIX))
    folder = packaged.folder_of(name) or Path(name)
    try:
        if not folder.is_dir():
            return None
    except OSError as error:  # a name that no file can have
        raise ValueError(f"{shown(name)} is no name of a model: {error.strerror}") from error
    if (folder / INDEX).is_file() or (pickles and _pickles(folder)):
        return folder
    refuse_pickles(folder)
    if not any(folder.glob(f"*{SAFE}")):
        raise ValueError(f"{folder} has no *{SAFE} file; {kind_of(folder)}")
    return folder


def _pickles(folder: Path) -> list[str]:
    if any(folder.glob(f"*{SAFE}")):
        return []
    names = [path.name for suffix in (*PICKLED, ".ckpt") for path in sorted(folder.glob(f"*{suffix}"))]
    return [name for name in names if not name.startswith(OF_TRAINING)]


def refuse_pickles(folder: Path) -> None:
    """Refuse a folder that has its weights only as a pickle."""
    if pickles := _pickles(folder):
        raise ValueError(
            f"{folder} has its weights as a pickle ({pickles[0]}), which can run code; "
            "convert them once with model.save_pretrained(..., safe_serialization=True)"
        )


def refuse_without_reader() -> None:
    """Refuse to read GGUF files, by a `ValueError`, where the package is missing; says how to install it."""
    if find_spec("gguf") is None:
        raise ValueError("reading GGUF files needs the package gguf: pip install 'mmspec[gguf]'")


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder, in float32, in which its numbers are exactly those of the file."""
    refuse_without_reader()
    place, name = str(file.parent), file.name
    with refusing_code(f"the GGUF file {name!r}"):
        model = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, trust_remote_code=False)
    # The weights are plain numbers now: the mark would make transformers look for the file again.
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
