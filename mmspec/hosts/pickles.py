"""Files of `torch.save`: mappings from names to weights, of which no code is run.

A pickle can contain code. Only tensors, plain containers and `argparse.Namespace` are read (`weights_only=True`); the
last is a bag of names, in which training scripts store their arguments. torch's errors are replaced: they recommend
to run the code.

Weights are `{"model": …}` (DDP), bare states (FSDP), `{"module": …}` or `{"state_dict": …}`; keys may begin with
`module.` or `_orig_mod.`.
"""

import argparse
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import safe_globals

from mmspec.registry.printable import shown

PICKLED = (".bin", ".pt", ".pth")  # suffixes of such files
WRAPPERS = ("model", "module", "state_dict")
PREFIXES = ("_orig_mod.", "module.")


def read_saved(path: Path, mapped: bool = False) -> Any:
    """The contents of a file of `torch.save`, if wanted mapped into memory (not in torch's format before 1.6, which is
    read whole); refuses other objects than numbers.
    """
    try:
        with safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and zipfile.is_zipfile(path))
    except Exception as error:  # a damaged file can make the libraries raise anything
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            what = f"it holds objects beside its weights ({shown(found[1])}), which can run code"
            raise ValueError(f"{what}; it is not read") from None
        kind = type(error).__name__
        raise ValueError(f"it is damaged, cut off, or no checkpoint of torch.save ({kind})") from None


def read_pickle(path: Path, mapped: bool = False) -> Mapping[Any, Any]:
    """As `read_saved`, of a mapping."""
    contents = read_saved(path, mapped)
    if not isinstance(contents, Mapping):
        raise ValueError(f"it holds a {type(contents).__name__}, not a mapping from names to weights")
    return contents


def unwrapped(contents: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The innermost mapping of a checkpoint: `contents["model"]` and the like, where there is such a wrapper."""
    for wrapper in WRAPPERS:
        if isinstance(contents.get(wrapper), Mapping):
            contents = contents[wrapper]
    return contents


def weights_in(contents: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The weights of a checkpoint's contents under their plain keys; nothing else may be among them."""
    found: dict[str, Tensor] = {}
    for key, value in unwrapped(contents).items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            what = f"a {type(value).__name__}" if isinstance(key, str) else "no name"
            raise ValueError(f"names with weights were expected, and {shown(repr(key))} is {what}")
        refuse_second(found, plain(key))
        if problem := unfit(value):
            raise ValueError(f"the weights {shown(key)} {problem}")
        found[plain(key)] = value.detach()
    if not found:
        raise ValueError("there are no weights in it")
    return found


def plain(key: str) -> str:
    """A key without what wrappers of modules put before it."""
    while key.startswith(PREFIXES):
        key = key.removeprefix(next(prefix for prefix in PREFIXES if key.startswith(prefix)))
    return key


def refuse_second(found: Mapping[str, Any], key: str) -> None:
    """Refuse a plain key that is there already."""
    if key in found:
        raise ValueError(f"the weights {shown(key)} are there twice, with and without {' or '.join(PREFIXES)}")


def unfit(weights: Tensor) -> str:
    """The reason why a tensor is no weight whose numbers are stored one behind the other; "" if it is one."""
    if weights.layout != torch.strided or weights.is_quantized or weights.is_complex():
        return f"are {weights.dtype} ({weights.layout}); dense floating-point numbers were expected"
    if not weights.is_meta and weights.numel() * weights.element_size() > weights.untyped_storage().nbytes():
        return f"are {list(weights.shape)} numbers, of which few are stored"
    return ""
