"""Published files into our models: wrappers off, what is no weight left out, and what does not fit refused by name.

Files are `{"model": …}` of DDP training, bare states of FSDP, or `{"module": …}` and `{"state_dict": …}`; keys may
begin with `module.` or `_orig_mod.`. Most are pickles, which can hold code; torch reads weights of them and no code,
and what it raises then is said in our words: its own recommend to let the code run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from mmspec.hosts.weight_files import differences
from mmspec.registry.printable import shown

WRAPPERS = ("model", "module", "state_dict")
PREFIXES = ("_orig_mod.", "module.")

Source = str | Path | Mapping[str, Any]
"""A `.pt` or `.safetensors` file, or what such a file holds."""
Model = TypeVar("Model", bound=torch.nn.Module)


def from_official(
    make: Callable[[dict[str, Tensor]], Model],
    source: Source,
    left_out: Sequence[str] = (),
    *,
    read: Callable[[Source, Sequence[str]], dict[str, Tensor]] | None = None,
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> Model:
    """A model with the weights of a published file, in evaluation mode.

    Args:
        make: Makes it; what shapes say of its sizes is taken from the weights, under their published keys.
        source: The file, or what it holds.
        left_out: As of `read_state`.
        read: Instead of `read_state`.
        renamed: The weights under the model's keys.

    Raises:
        ValueError: The file cannot be read or does not fit; names the file.
    """
    try:
        state = (read or read_state)(source, left_out)
        model = make(state)
        load_into(model, renamed(state))
    except ValueError as error:
        if isinstance(source, Mapping):
            raise
        raise ValueError(f"{shown(source)}: {error}") from error
    return model.eval()


def read_state(source: Source, left_out: Sequence[str] = ()) -> dict[str, Tensor]:
    """The weights of an official file, under their plain keys.

    Args:
        source: The file, or what it holds.
        left_out: Entries are left out whose keys have one of these in them: caches, tables, counts.

    Raises:
        ValueError: There is no such file, or no weights in it, or they are no finite numbers.
    """
    held: Any = source if isinstance(source, Mapping) else read_file(Path(source))
    for wrapper in WRAPPERS:
        if isinstance(held.get(wrapper), Mapping):
            held = held[wrapper]
    state: dict[str, Tensor] = {}
    for key, value in held.items():
        if not isinstance(value, Tensor) or any(word in str(key) for word in left_out):
            continue
        plain = _plain(str(key))
        if not isinstance(key, str):
            raise ValueError(f"a weight is called {shown(repr(key))}, which is no name")
        if plain in state:
            raise ValueError(f"the weights {shown(plain)} are there twice, with and without {' or '.join(PREFIXES)}")
        if problem := _problem(value):
            raise ValueError(f"the weights {shown(plain)} {problem}")
        state[plain] = value
    if not state:
        raise ValueError(f"there are no weights in it; top-level keys are {shown(', '.join(map(str, list(held)[:6])))}")
    return state


def read_file(path: Path, harmless: Sequence[type] = ()) -> Mapping[Any, Any]:
    """What a file holds: tensors in mappings; it runs no code.

    Args:
        path: A `.safetensors` file, or a pickle of torch's.
        harmless: Classes beside torch's whose objects may be in it: plain attributes, no code.

    Raises:
        ValueError: There is no such file, it is damaged or another kind of file, or it holds anything else.
    """
    if not path.is_file():
        raise ValueError("it is a folder; name the file in it" if path.is_dir() else f"there is no file {shown(path)}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(list(harmless)):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a file can make a library raise is nobody's to list
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            what = f"it holds objects beside its weights ({shown(found[1])}), which can run code"
            raise ValueError(f"{what}; it is not read") from None
        kind = "safetensors file" if path.suffix == ".safetensors" else "checkpoint of torch.save"
        raise ValueError(f"it is damaged, cut off, or no {kind} ({type(error).__name__})") from None
    if not isinstance(held, Mapping):
        raise ValueError(f"it holds a {type(held).__name__}, not a mapping from names to weights")
    return held


def load_into(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state that has to fit, key by key.

    Raises:
        ValueError: A key is missing, unexpected, or of another shape; names the first of each.
    """
    own = model.state_dict()
    both = own.keys() & state.keys()
    other = [f"{k}: {list(state[k].shape)}, not {list(own[k].shape)}" for k in both if own[k].shape != state[k].shape]
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    if wrong := differences(missing=missing, unexpected=unexpected, of_another_shape=other):
        raise ValueError(f"these weights are not of this model: {wrong}")
    model.load_state_dict(dict(state))


def shape_in(state: Mapping[str, Tensor], key: str, dims: int) -> tuple[int, ...]:
    """The shape of a weight that tells a size.

    Args:
        state: Plain keys.
        key: Of the weight.
        dims: How many dimensions it has to have.

    Raises:
        ValueError: It is not there, or has another number of dimensions.
    """
    if key not in state:
        raise ValueError(f"there is no {key}")
    shape = tuple(state[key].shape)
    if len(shape) != dims or 0 in shape:
        raise ValueError(f"{key} has the shape {list(shape)}; {dims} dimensions were expected")
    return shape


def count_in(state: Mapping[str, Tensor], prefix: str) -> int:
    """How many blocks a state has, from 0 on.

    Args:
        state: Plain keys.
        prefix: What stands before their numbers, such as `layers.`.

    Raises:
        ValueError: There is none, or one is left out.
    """
    found = {key.removeprefix(prefix).partition(".")[0] for key in state if key.startswith(prefix)}
    if not found or found != set(map(str, range(len(found)))):
        numbers = shown(", ".join(sorted(found)[-3:])) or "none"
        raise ValueError(f"blocks {prefix}0, {prefix}1, … were expected, without a gap; there is {numbers}")
    return len(found)


def _problem(weights: Tensor) -> str:
    """Why a tensor is no weight; "" if it is one."""
    if weights.layout != torch.strided or weights.is_quantized or not weights.is_floating_point():
        return f"are {weights.dtype} ({weights.layout}); dense floating-point numbers were expected"
    if weights.is_meta:
        return ""
    if weights.numel() * weights.element_size() > weights.untyped_storage().nbytes():
        return f"are {list(weights.shape)} numbers, of which few are stored"
    return "" if bool(weights.isfinite().all()) else "are not finite: there is NaN or infinity in them"


def _plain(key: str) -> str:
    while key.startswith(PREFIXES):
        key = key.removeprefix(next(prefix for prefix in PREFIXES if key.startswith(prefix)))
    return key
