"""Reading a head's files, whatever its kind: config and headers first, then the tensors that a network takes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file
from torch import Tensor, nn

from mmspec.hosts.loading import fetched, locate
from mmspec.hosts.weight_files import CONFIG, StoredTensor, differences, stored_tensors, weight_files
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json

Network = TypeVar("Network", bound=nn.Module)
MAPS = ("d2t", "t2d")
"""Keys of the map of a pruned vocabulary, the only integers that a head may hold."""


@dataclass(frozen=True)
class Stored:
    """A head's files.

    Attributes:
        what: The head in messages.
        folder: Where they are.
        config: The entries of `config.json`.
        keys: All keys in the files.
        names: What keys are called here, but for those that a head does not need.
        headers: The tensors' headers, by these names.
    """

    what: str
    folder: Path
    config: Mapping[str, Any]
    keys: tuple[str, ...]
    names: Mapping[str, str]
    headers: Mapping[str, StoredTensor]

    def weights(self, wanted: Collection[str]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """The tensors of these names, as far as there are any; and the keys in the files that are not used."""
        tensors = {key: value for path in weight_files(self.folder) for key, value in load_file(path).items()}
        taken = {new: tensors[old] for old, new in self.names.items() if new in wanted}
        return taken, tuple(sorted(key for key in self.keys if self.names.get(key) not in wanted))


def stored_head(name: str, renamed: Callable[[str], str], unused: Sequence[str]) -> Stored:
    """Read the headers of a head's files.

    Args:
        name: A folder, or a hub name.
        renamed: What a key is called here.
        unused: Parts of keys that a head does not need.

    Raises:
        ValueError: There is none, it is a pickle, damaged or quantised, or two tensors have one name.
    """
    what = f"the head {name!r}"
    folder = fetched(locate(name))
    config = read_json(folder / CONFIG)
    raw = stored_tensors(folder)
    if not raw:
        raise ValueError(f"{what} has no weights in {folder}")
    names = {key: renamed(key) for key in raw if not any(part in key for part in unused)}
    _refuse_doubles(names, what)
    headers = {new: raw[old] for old, new in names.items()}
    packed = [key for key, tensor in headers.items() if tensor.is_integer and key not in MAPS]
    if packed:
        raise ValueError(f"{what} is quantised ({shown(packed[0])} holds integers); use its weights in full precision")
    return Stored(what, folder, config, tuple(raw), names, headers)


def fitted(network: Network, weights: Mapping[str, Tensor], what: str, layout: str) -> Network:
    """A network that was built on the device `meta`, with its weights.

    Raises:
        ValueError: Tensors are missing or have other shapes; the message names them.
    """
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    here = {key: value for key, value in weights.items() if key not in MAPS}
    missing = expected.keys() - here.keys()
    other = [
        f"{key}: {list(here[key].shape)}, not {list(shape)}"
        for key, shape in expected.items()
        if key in here and tuple(here[key].shape) != shape
    ]
    if wrong := differences(missing=missing, of_another_shape=other):
        raise ValueError(f"the weights of {what} (layout {layout}) do not fit: {wrong}")
    network.load_state_dict({key: here[key] for key in expected}, assign=True)
    return network.eval().requires_grad_(False)


def _refuse_doubles(names: Mapping[str, str], what: str) -> None:
    """Refuse files with two tensors for one place."""
    seen: dict[str, str] = {}
    for old, new in names.items():
        if new in seen:
            raise ValueError(f"{what}: {shown(seen[new])} and {shown(old)} are the same part ({shown(new)})")
        seen[new] = old
