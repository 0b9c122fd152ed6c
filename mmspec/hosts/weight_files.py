"""Checks of a folder of weights before a model is built: the headers of its files, and its config.

A config may be wrong or malicious. Ten million layers would be ten million Python objects before the first missing
weight is noticed, and a width of 10⁹ needs more memory than any machine has; so the config is compared with the files.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mmspec.hosts.pickles import PICKLED, read_pickle, weights_in
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json

INDEX = "model_index.json"  # the file that makes a folder a saved pipeline
CONFIG = "config.json"
STEMS = ("model", "diffusion_pytorch_model")  # file names of weights without suffix: transformers', diffusers'
SAFE, SHARDS = ".safetensors", ".index.json"
"""Suffix of the weights, and what the name of the list of their shards has behind it."""
FILES = tuple(stem + end for stem in STEMS for end in (SAFE, SAFE + SHARDS))  # file names of weights
ADAPTER = "adapter_config.json"
COUNTS = re.compile(r"(^|_)(layers?|blocks|depth)$")  # keys of a config that count modules
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
"""Keys of a config whose value may be the name of a repository, from which transformers fetches a kernel."""
ELSEWHERE = "transformers_weights"  # key of a config that names other weights than those beside it
FEW = 1000
"""So many layers are always allowed: they are cheap to build, and some configs count layers that the model lacks."""
CONSTANT = re.compile(r"(^|\.)(masked_bias|inv_freq|(cos|sin)_cached|position_ids)$")
POINTER = b"version https://git-lfs"  # beginning of what git leaves in the place of a large file that it did not fetch
MASK = re.compile(r"(^|\.)att(n|ention)\.bias$")
"""Keys of constants. A mask that matches the second is `[1, 1, position, position]`; a bias has one dimension."""
MULTI_TOKEN = re.compile(r"(^|\.)mtp[._]")
BESIDE = re.compile(r".*?layers\.\d+\.")
PROJECTION = "eh_proj.weight"
"""Layers for multi-token prediction: in the names of keys, or beside a projection behind the model's layers."""
TEXT_CONFIGS = ("text_config", "quantization_config")  # nested configs of a model of text alone
ALIGNED = 64  # addresses at which torch allocates are multiples of it
SPARE = 2**28  # numbers that a model may have beyond those in its files: masks and tables of positions
PACKED = 32  # the most weights that one number of a quantised file stands for


@dataclass(frozen=True)
class StoredTensor:
    """The header of a tensor in a file."""

    dtype: str  # the dtype's name in safetensors, such as `F32`
    shape: tuple[int, ...]

    @property
    def is_integer(self) -> bool:
        """True if its numbers are integers or booleans."""
        return self.dtype == "BOOL" or self.dtype[0] in "IU"


def file_names(stems: Sequence[str]) -> tuple[str, ...]:
    """File names of weights for these names without suffix: of safetensors files, then of pickles and their shards."""
    safe = [stem + end for stem in stems for end in (SAFE, SAFE + SHARDS)]
    pickled = [stem + end for stem in ("pytorch_model", *stems) for end in (*PICKLED, PICKLED[0] + SHARDS)]
    return tuple(safe + pickled)


def weight_files(folder: Path, names: Sequence[str] = FILES) -> list[Path]:
    """The weight files in a folder that transformers or diffusers would read, of the first of `names` that is there
    (weights, or a list of their shards); [] if none is; refuses a list that names a file outside of the folder.
    """
    whole, shards = _whole_or_shards(folder, names)
    return [whole] if whole is not None else [folder / name for name in sorted(set(shards.values()))]


def key_files(folder: Path) -> dict[str, Path]:
    """The file of every key; of weights in several files their index alone is read."""
    whole, shards = _whole_or_shards(folder, FILES)
    if whole is None:
        return {key: folder / name for key, name in shards.items()}
    return dict.fromkeys(stored_tensors(folder), whole)


def _whole_or_shards(folder: Path, names: Sequence[str]) -> tuple[Path | None, dict[str, str]]:
    """The file of all weights, or the file names of all keys; None and {} if there are no weights."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None or not path.name.endswith(SHARDS):
        return path, {}
    named, suffix = read_json(path).get("weight_map"), Path(path.name.removesuffix(SHARDS)).suffix
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ValueError(f"{path} has no weight_map from keys to files")
    wrong = [name for name in named.values() if Path(name).name != name or not name.endswith(suffix)]
    if wrong:
        raise ValueError(f"{path} names {shown(repr(min(wrong)))}, which is no {suffix[1:]} file of its folder")
    return None, named


def stored_tensors(folder: Path, names: Sequence[str] = FILES) -> dict[str, StoredTensor]:
    """The headers of all tensors in a folder's weight files, by key; arguments as in `weight_files`; refuses damaged
    files, and pickles of other things than weights.
    """
    found: dict[str, StoredTensor] = {}
    for path in weight_files(folder, names):
        if path.suffix != SAFE:
            found |= {key: StoredTensor(_named(value), tuple(value.shape)) for key, value in _pickled(path).items()}
            continue
        try:
            with safe_open(path, "pt") as file:
                for key in file.keys():  # noqa: SIM118  (the file is no mapping)
                    part = file.get_slice(key)
                    found[key] = StoredTensor(str(part.get_dtype()), tuple(part.get_shape()))
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(
                f"the weights of {str(folder)!r} are damaged or truncated: {wrong_in(path, error)}"
            ) from error
    return found


def wrong_in(path: Path, error: Exception) -> str:
    """The fault in a file of weights that could not be read."""
    pointer = path.is_file() and path.stat().st_size < FEW and path.read_bytes().startswith(POINTER)
    return f"{path.name} is a pointer of git LFS; `git lfs pull` fetches the file" if pointer else shown(error)


def read_tensors(path: Path, keys: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a weight file that have these keys, as far as it has them."""
    if path.suffix != SAFE:
        return {key: value.clone() for key, value in _pickled(path).items() if key in keys}  # a part of what is mapped
    try:
        with safe_open(path, "pt") as file:
            return {key: aligned(file.get_tensor(key)) for key in file.keys() if key in keys}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} is damaged, truncated or missing: {wrong_in(path, error)}") from error


def aligned(tensor: Tensor) -> Tensor:
    """A tensor at an address at which torch allocates: itself, or a copy. Where it begins in a file is up to the length
    of the header, and products of MKL sum in another order at other addresses.
    """
    return tensor.clone() if tensor.data_ptr() % ALIGNED else tensor


def align_weights(model: nn.Module) -> None:
    """Move what was loaded into a model to addresses at which torch allocates."""
    for tensor in (*model.parameters(), *model.buffers()):
        if type(tensor) in (Tensor, nn.Parameter):
            tensor.data = aligned(tensor.data)


def _pickled(path: Path) -> dict[str, Tensor]:
    """The weights of a pickle, mapped into memory where that can be."""
    try:
        return weights_in(read_pickle(path, mapped=True))
    except ValueError as error:
        raise ValueError(f"{path.name} in {str(path.parent)!r}: {error}") from None


def _named(weights: Tensor) -> str:
    """A dtype's name as in safetensors, up to the width of integers."""
    if not weights.is_floating_point():
        return "BOOL" if weights.dtype == torch.bool else "I"
    return "BF16" if weights.dtype == torch.bfloat16 else f"F{8 * weights.element_size()}"


def refuse_config(folder: Path, stored: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The config's entries, unless it refers to other repositories or asks for more layers than its files have tensors
    (`stored`; empty if only the config is checked).
    """
    if (folder / ADAPTER).is_file():
        raise ValueError(
            f"{str(folder)!r} holds an adapter ({ADAPTER}), whose base model is wherever the file says; load the base "
            "model yourself, add the adapter, and give the live model"
        )
    config = read_json(folder / CONFIG)
    for key, value in _entries(config):
        if COUNTS.search(key) and isinstance(value, int | float) and value > max(FEW, len(stored)):
            most = f", and its files hold {len(stored)} tensors" if stored else f"; {FEW} is the most without weights"
            raise ValueError(f"the config of {str(folder)!r} says {shown(key)} = {shown(value)}{most}")
        if (key in KERNELS and "/" in str(value)) or key == ELSEWHERE:
            raise ValueError(f"the config of {str(folder)!r} leads elsewhere: {shown(key)} = {shown(repr(value))}")
    return config


def refuse_mismatch(model: Any, config: Mapping[str, Any], stored: Mapping[str, StoredTensor], what: str) -> None:
    """Refuse files that cannot be the weights of a model, which was built on the device `meta` and is called `what` in
    messages, as in `the model 'x'`.
    """
    quantised = _quantised(config)
    present = sum(prod(tensor.shape) for tensor in stored.values())
    most = present * (PACKED if quantised else 2)  # twice: tied weights may be counted twice
    weights = sum(tensor.numel() for tensor in model.parameters())
    others = sum(tensor.numel() for tensor in model.buffers())
    if max(weights - most, others - present) > SPARE:  # a smaller difference is listed by key after the model is built
        raise ValueError(
            f"the config of {what} asks for {weights:,} weights and {others:,} other numbers, and its files hold "
            f"{present:,}"
        )
    buffers = {key for key, _ in model.named_buffers()}
    loaded, names = _loaded_parts(model, config), {key.rpartition(".")[2] for key, _ in model.named_parameters()}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    for key, tensor in stored.items():
        allowed = quantised or not tensor.is_integer or _constant(key, tensor)
        # Of a part that is not loaded, buffers are known by their names: a counter is not called `weight`.
        allowed = allowed or (_left_out(key, loaded) and key.rpartition(".")[2] not in names)
        if not (allowed or any(_same(key, own) for own in buffers) or any(each.search(key) for each in ignored)):
            entry = f"{shown(key)} is {tensor.dtype}"
            raise ValueError(f"weights of {what} are integers and its config has no quantization_config: {entry}")


def unexpected_keys(
    model: Any, unexpected: Collection[str], config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> list[str]:
    """Those of the `unexpected` keys, for which the model has no place, that a published file of it would not have: no
    constants, no layers for multi-token prediction, no vision or audio parts beside a language part.
    """
    found = [key for key in unexpected if key not in stored or not _constant(key, stored[key])]
    found = [key for key in found if not _multi_token(key, stored)]
    loaded = _loaded_parts(model, config)
    return [key for key in found if not _left_out(key, loaded)]


def _loaded_parts(model: Any, config: Mapping[str, Any]) -> set[str] | None:
    """The parts that a model has of the several that its config describes; None where it describes text alone."""
    nested = [key for key, value in config.items() if isinstance(value, dict) and key.endswith("_config")]
    return None if all(key in TEXT_CONFIGS for key in nested) else {_part(key) for key, _ in model.named_parameters()}


def _left_out(key: str, loaded: set[str] | None) -> bool:
    return loaded is not None and _part(key) not in loaded


def _quantised(config: Mapping[str, Any]) -> bool:
    from transformers.quantizers.auto import AutoHfQuantizer

    method = config.get("quantization_config")
    try:
        return isinstance(method, dict) and bool(AutoHfQuantizer.supports_quant_method(method))
    except (ValueError, TypeError):  # the entry names no method
        return False


def _constant(key: str, tensor: StoredTensor) -> bool:
    """True if a tensor is a mask or a table, which models compute themselves and older files contain."""
    mask = MASK.search(key) and len(tensor.shape) == 4 and tensor.shape[:2] == (1, 1)
    return bool(mask or CONSTANT.search(key))


def _multi_token(key: str, stored: Mapping[str, StoredTensor]) -> bool:
    """True if a tensor is of a layer for multi-token prediction, by its name or by what is beside it."""
    beside = BESIDE.match(key)
    return bool(MULTI_TOKEN.search(key)) or bool(beside and f"{beside[0]}{PROJECTION}" in stored)


def _part(key: str) -> str:
    """The first two names of a key, such as `model.layers`."""
    return ".".join(key.split(".")[:2])


def differences(**keys: Collection[str]) -> str:
    """A text that lists wrong keys by what is wrong with them, three of each kind; "" if there are none."""
    parts = []
    for what, wrong in keys.items():
        listed = ", ".join(sorted(wrong)[:3]) + ", …" * (len(wrong) > 3)
        parts += [f"{len(wrong)} keys {what.replace('_', ' ')} ({shown(listed)})"] if wrong else []
    return "; ".join(parts)


def _same(key: str, own: str) -> bool:
    """True if two keys are equal, up to the prefix of a base model."""
    return key == own or key.endswith(f".{own}") or own.endswith(f".{key}")


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All keys and values of a config and of its nested configs."""
    nested: list[Any] = [config]
    while nested:
        value = nested.pop()
        if isinstance(value, Mapping):
            yield from value.items()
            nested += value.values()
        elif isinstance(value, list):
            nested += value
