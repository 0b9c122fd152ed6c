"""What a folder of weights says before anything is built or read from it: headers of its files, and its config.

A config is a claim. Ten million layers of it are ten million Python objects before the first weight is missed, and a
width of 10⁹ is memory that no machine has; so the claim is compared with what the files hold.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mmspec.registry.printable import shown
from mmspec.untrusted import read_json

CONFIG = "config.json"
STEMS = ("model", "diffusion_pytorch_model")
"""File names of transformers and of diffusers."""
ENDS = (".safetensors", ".safetensors.index.json")
"""How they end: the weights, or the list of their shards."""
ADAPTER = "adapter_config.json"
COUNTS = re.compile(r"(^|_)(layers?|blocks|depth)$")
"""Keys of a config that count what is built one by one."""
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
"""Keys of a config whose value may be the name of a repository, from which transformers fetches a kernel."""
ELSEWHERE = "transformers_weights"
"""Key of a config that names other weights than those beside it."""
FEW = 1000
"""So many layers are built at no cost; and some configs count what their model does not have."""
CONSTANT = re.compile(r"(^|\.)(masked_bias|inv_freq|(cos|sin)_cached|position_ids)$")
MASK = re.compile(r"(^|\.)att(n|ention)\.bias$")
"""Keys of constants; a mask by the second is `[1, 1, position, position]`, where a bias has one dimension."""
OWN = ("text_config", "quantization_config")
"""Nested configs of a model of text alone."""
SPARE = 2**28
"""Numbers that a model may have beyond those in its files: masks and tables of positions."""
PACKED = 32
"""Weights that a number of a quantised file may stand for."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        dtype: As safetensors calls it, such as `F32`.
        shape: Its shape.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether its numbers are integers or truth values."""
        return self.dtype == "BOOL" or self.dtype[0] in "IU"


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers or diffusers would read; none if there are none of theirs.

    Raises:
        ValueError: An index cannot be read, or names a file outside the folder.
    """
    for stem in STEMS:
        whole, index = (folder / f"{stem}{end}" for end in ENDS)
        if whole.is_file():
            return [whole]
        if index.is_file():
            named = read_json(index).get("weight_map")
            if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
                raise ValueError(f"{index} has no weight_map from keys to files")
            shards = sorted(set(named.values()))
            strange = [name for name in shards if Path(name).name != name or not name.endswith(".safetensors")]
            if strange:
                raise ValueError(f"{index} names {shown(repr(strange[0]))}, which is no safetensors file of its folder")
            return [folder / name for name in shards]
    return []


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder's files, of which only headers are read.

    Raises:
        ValueError: A file is missing, damaged or truncated.
    """
    found = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, "pt") as file:
                for key in file.keys():  # noqa: SIM118  it is no mapping
                    part = file.get_slice(key)
                    found[key] = StoredTensor(str(part.get_dtype()), tuple(part.get_shape()))
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"the weights of {str(folder)!r} are damaged or truncated: {shown(error)}") from error
    return found


def refuse_config(folder: Path, stored: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Refuse a folder whose config claims more layers than its files have tensors, or leads out of it.

    Args:
        folder: It has a `config.json`.
        stored: What its files hold; nothing where only the config is asked about.

    Returns:
        The config as it is written.

    Raises:
        ValueError: Says which key.
    """
    if (folder / ADAPTER).is_file():
        raise ValueError(
            f"{str(folder)!r} holds an adapter ({ADAPTER}), whose base model is wherever the file says; load the base "
            "model yourself, add the adapter, and give the live model"
        )
    config = read_json(folder / CONFIG)
    for key, value in _entries(config):
        if COUNTS.search(key) and isinstance(value, int | float) and value > max(FEW, len(stored)):
            there = f", and its files hold {len(stored)} tensors" if stored else f"; {FEW} is the most without weights"
            raise ValueError(f"the config of {str(folder)!r} says {shown(key)} = {shown(value)}{there}")
        if (key in KERNELS and "/" in str(value)) or key == ELSEWHERE:
            raise ValueError(f"the config of {str(folder)!r} leads elsewhere: {shown(key)} = {shown(repr(value))}")
    return config


def refuse_mismatch(model: Any, config: Mapping[str, Any], stored: Mapping[str, StoredTensor], what: str) -> None:
    """Refuse files that cannot be the weights of a model that was built without storage.

    Args:
        model: Of transformers or diffusers, on the device `meta`.
        config: As it is written.
        stored: What the files hold.
        what: The model, as in `the model 'x'`.

    Raises:
        ValueError: The model has many more numbers than the files, or weights are integers.
    """
    quantised = _quantised(config)
    held = sum(prod(tensor.shape) for tensor in stored.values())
    most = held * (PACKED if quantised else 2)  # twice: tied weights may be counted twice
    weights = sum(tensor.numel() for tensor in model.parameters())
    others = sum(tensor.numel() for tensor in model.buffers())
    if max(weights - most, others - held) > SPARE:  # fewer are listed by name, once they are built
        raise ValueError(
            f"the config of {what} asks for {weights:,} weights and {others:,} other numbers, and its files hold "
            f"{held:,}"
        )
    tables = {key for key, _ in model.named_buffers()}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    for key, tensor in stored.items():
        meant = quantised or not tensor.whole or _constant(key, tensor) or any(_same(key, own) for own in tables)
        if not meant and not any(pattern.search(key) for pattern in ignored):
            said = f"{shown(key)} is {tensor.dtype}"
            raise ValueError(f"weights of {what} are integers and its config has no quantization_config: {said}")


def unexpected_keys(
    model: Any, unexpected: Collection[str], config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> list[str]:
    """Those of the unexpected keys that a published file of this model would not have.

    Args:
        model: As it was loaded.
        unexpected: Keys that it has no use for.
        config: As it is written.
        stored: What the files hold.
    """
    found = [key for key in unexpected if key not in stored or not _constant(key, stored[key])]
    if not any(key.endswith("_config") and key not in OWN for key, value in config.items() if isinstance(value, dict)):
        return found
    own = {_place(key) for key, _ in model.named_parameters()}
    return [key for key in found if _place(key) in own]  # others are of the eyes and ears, where only text is wanted


def _quantised(config: Mapping[str, Any]) -> bool:
    """Whether integers are meant: the config names a way to quantise that transformers has."""
    from transformers.quantizers.auto import AutoHfQuantizer  # where such a model is loaded, so is transformers

    said = config.get("quantization_config")
    try:
        return isinstance(said, dict) and bool(AutoHfQuantizer.supports_quant_method(said))
    except (ValueError, TypeError):  # it names none
        return False


def _constant(key: str, tensor: StoredTensor) -> bool:
    """Whether a tensor is a mask or a table, which files of older versions have and models make themselves."""
    mask = MASK.search(key) and len(tensor.shape) == 4 and tensor.shape[:2] == (1, 1)
    return bool(mask or CONSTANT.search(key))


def _place(key: str) -> str:
    return ".".join(key.split(".")[:2])


def differences(**keys: Collection[str]) -> str:
    """Keys that are missing, unexpected or otherwise wrong, by what is wrong with them; three of each are named.

    Args:
        **keys: Lists of keys by what is wrong with them, an underscore for a space; those without keys go unsaid.
    """
    said = []
    for what, wrong in keys.items():
        listed = ", ".join(sorted(wrong)[:3]) + ", …" * (len(wrong) > 3)
        said += [f"{len(wrong)} keys {what.replace('_', ' ')} ({shown(listed)})"] if wrong else []
    return "; ".join(said)


def _same(key: str, own: str) -> bool:
    """Whether a key is a model's own, maybe with or without the prefix of its base model."""
    return key == own or key.endswith(f".{own}") or own.endswith(f".{key}")


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All keys and values, those of nested configs too."""
    open_ones: list[Any] = [config]
    while open_ones:
        held = open_ones.pop()
        if isinstance(held, Mapping):
            yield from held.items()
            open_ones += held.values()
        elif isinstance(held, list):
            open_ones += held
