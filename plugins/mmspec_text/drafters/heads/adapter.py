"""Reading an adapter's two files as PEFT names them; nothing of what they hold is run or loaded into a model."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import cached_file

from mmspec.hosts.loading import refuse_pickles
from mmspec.hosts.remote_code import refusing_code
from mmspec.hosts.weight_files import ADAPTER
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json

WEIGHTS = "adapter_model.safetensors"


def read_adapter(name: str, what: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of an adapter.

    Args:
        name: A folder, or a hub name.
        what: The adapter in messages.

    Raises:
        ValueError: There is none, it is a pickle, or damaged.
    """
    folder = _fetched(name, what)
    config = read_json(folder / ADAPTER)
    try:
        return config, load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{what} cannot be read: {shown(error)}") from error


def _fetched(name: str, what: str) -> Path:
    """The folder with both files."""
    folder = Path(name)
    if folder.is_dir():
        refuse_pickles(folder)
        for file in (ADAPTER, WEIGHTS):
            if not (folder / file).is_file():
                raise ValueError(f"{what} has no {file}: {name!r} is no adapter")
        return folder
    with refusing_code(what):
        try:
            cached_file(name, WEIGHTS)
            return Path(cached_file(name, ADAPTER)).parent
        except (OSError, ValueError) as error:
            raise ValueError(f"{what} is neither a folder here nor to be had from the hub") from error
