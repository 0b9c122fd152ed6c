"""Published files into our models: wrappers off, what is no weight left out, and what does not fit refused by name.

Files are `{"model": …}` of DDP training, bare states of FSDP, or `{"module": …}` and `{"state_dict": …}`; keys may
begin with `module.` or `_orig_mod.`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

WRAPPERS = ("model", "module", "state_dict")
PREFIXES = ("_orig_mod.", "module.")


def read_state(source: str | Path | Mapping[str, Any], left_out: Sequence[str] = ()) -> dict[str, Tensor]:
    """The weights of an official file, under their plain keys.

    Args:
        source: A `.pt` (read with `weights_only=True`) or `.safetensors` file, or what such a file holds.
        left_out: Entries are left out whose keys have one of these in them: caches, tables, counts.

    Raises:
        ValueError: There is no such file, or no weights in it.
    """
    held: Any = source if isinstance(source, Mapping) else _read(Path(source))
    for wrapper in WRAPPERS:
        if isinstance(held.get(wrapper), Mapping):
            held = held[wrapper]
    state = {_plain(key): value for key, value in held.items() if isinstance(value, Tensor)}
    state = {key: value for key, value in state.items() if not any(word in key for word in left_out)}
    if not state:
        raise ValueError(f"there are no weights in it; top-level keys are {', '.join(map(str, list(held)[:6]))}")
    return state


def load_into(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state that has to fit, key by key.

    Raises:
        ValueError: A key is missing, unexpected, or of another shape; names the first of each.
    """
    own = model.state_dict()
    missing, strange = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    both = own.keys() & state.keys()
    other = [f"{k}: {list(state[k].shape)}, not {list(own[k].shape)}" for k in both if own[k].shape != state[k].shape]
    found = {"missing": missing, "unexpected": strange, "of another shape": other}
    problems = [f"{len(keys)} keys {what} ({keys[0]}{', …' * (len(keys) > 1)})" for what, keys in found.items() if keys]
    if problems:
        raise ValueError(f"these weights are not of this model: {'; '.join(problems)}")
    model.load_state_dict(dict(state))


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _plain(key: str) -> str:
    while key.startswith(PREFIXES):
        key = key.removeprefix(next(prefix for prefix in PREFIXES if key.startswith(prefix)))
    return key
