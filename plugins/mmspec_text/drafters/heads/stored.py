"""Reading a head's files, whatever its kind: config and headers first, then the tensors that a network takes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open
from torch import Tensor, nn

from mmspec.hosts.loading import fetched, locate
from mmspec.hosts.weight_files import CONFIG, STEMS, StoredTensor, differences, stored_tensors, weight_files
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
        files: The files of weights.
        config: The entries of `config.json`.
        keys: All keys in the files.
        names: What keys are called here, but for those that a head does not need.
        headers: The tensors' headers, by these names.
    """

    what: str
    files: tuple[Path, ...]
    config: Mapping[str, Any]
    keys: tuple[str, ...]
    names: Mapping[str, str]
    headers: Mapping[str, StoredTensor]

    def matrix(self, key: str) -> tuple[int, int]:
        """Rows and columns of a matrix.

        Raises:
            ValueError: There is none of this name.
        """
        shape = self.headers[key].shape if key in self.headers else None
        if shape is None:
            raise ValueError(f"{self.what} has no {key}")
        if len(shape) != 2:
            raise ValueError(f"{self.what}: {key} has the shape {list(shape)}, and is no matrix")
        return shape[0], shape[1]

    def weights(self, wanted: Collection[str]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """The tensors of these names, as far as there are any; and the keys in the files that are not used."""
        taken: dict[str, Tensor] = {}
        for path in self.files:
            with safe_open(path, "pt") as file:  # a file may hold the whole target, too
                used = [key for key in file.keys() if self.names.get(key) in wanted]  # noqa: SIM118
                taken |= {self.names[key]: file.get_tensor(key) for key in used}
        return taken, tuple(sorted(key for key in self.keys if self.names.get(key) not in wanted))


def stored_head(
    name: str,
    renamed: Callable[[str], str],
    unused: Sequence[str],
    stems: Sequence[str] = (),
    integers: Collection[str] = MAPS,
) -> Stored:
    """Read the headers of a head's files.

    Args:
        name: A folder, or a hub name.
        renamed: What a key is called here.
        unused: Parts of keys that a head does not need.
        stems: File names of weights, without suffix, that are looked for before the usual ones.
        integers: Tensors that may be integers.

    Raises:
        ValueError: There is none, it is a pickle, damaged or quantised, or two tensors have one name.
    """
    what = f"the head {name!r}"
    stems = (*stems, *STEMS)
    folder = fetched(locate(name), stems)
    config = read_json(folder / CONFIG)
    raw = stored_tensors(folder, stems)
    if not raw:
        raise ValueError(f"{what} has no weights in {folder}")
    names = {key: renamed(key) for key in raw if not any(part in key for part in unused)}
    _refuse_doubles(names, what)
    headers = {new: raw[old] for old, new in names.items()}
    packed = [key for key, tensor in headers.items() if tensor.is_integer and key not in integers]
    if packed:
        raise ValueError(f"{what} is quantised ({shown(packed[0])} holds integers); use its weights in full precision")
    return Stored(what, tuple(weight_files(folder, stems)), config, tuple(raw), names, headers)


def no_layout(what: str, kind: str, keys: Collection[str], forms: Mapping[str, Sequence[str]]) -> str:
    """The message for a checkpoint in no known layout.

    Args:
        what: The checkpoint.
        kind: The kind of head, with its article.
        keys: Its keys.
        forms: Keys by which each layout is known.
    """
    lacking = {form: [key for key in named if key not in keys] for form, named in forms.items()}
    nearest, missing = min(lacking.items(), key=lambda item: len(item[1]) / len(forms[item[0]]))
    there = shown(", ".join(sorted(keys)[:4])) or "none"
    return (
        f"{what} has no layout of {kind} head; {nearest} is the nearest, and {', '.join(missing[:3])} is missing. "
        f"Its keys are {there}, …"
    )


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
