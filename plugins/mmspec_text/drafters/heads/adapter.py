"""Reading an adapter's two files as PEFT names them; nothing of what they hold is run or loaded into a model."""

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.utils import cached_file

from mmspec.hosts.pickles import PICKLED
from mmspec.hosts.remote_code import refusing_code
from mmspec.hosts.weight_files import ADAPTER, SAFE, read_tensors, stored_tensors, weight_files
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json

FILES = tuple(f"adapter_model{end}" for end in (SAFE, PICKLED[0]))
"""File names of its weights."""


def read_adapter(name: str, what: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of an adapter, in a safetensors file or a pickle (`weights_only=True`).

    Raises:
        ValueError: There is none, or it is damaged or a pickle of other things.
    """
    folder = _fetched(name, what)
    config = read_json(folder / ADAPTER)
    try:
        (weights,) = weight_files(folder, FILES)
        return config, read_tensors(weights, stored_tensors(folder, FILES).keys())
    except ValueError as error:
        raise ValueError(f"{what} cannot be read: {shown(error)}") from error


def _fetched(name: str, what: str) -> Path:
    folder = Path(name)
    if folder.is_dir():
        for files in ((ADAPTER,), FILES):
            if not any((folder / file).is_file() for file in files):
                raise ValueError(f"{what} has no {' and no '.join(files)}: {name!r} is no adapter")
        return folder
    with refusing_code(what):
        try:
            weights = [cached_file(name, file, _raise_exceptions_for_missing_entries=False) for file in FILES]
            if not any(weights):
                raise ValueError(f"there is no {' and no '.join(FILES)}")
            return Path(cached_file(name, ADAPTER)).parent
        except (OSError, ValueError) as error:
            raise ValueError(f"{what} is neither a folder here nor to be had from the hub") from error
