"""Loading published checkpoints: unwrap, drop what is no weight, and refuse what does not fit by name.

Most are pickles, of which no code is run (`mmspec.hosts.pickles`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from mmspec.hosts.pickles import plain, read_pickle, refuse_second, unfit, unwrapped
from mmspec.hosts.weight_files import STEMS, aligned, differences, file_names, weight_files
from mmspec.registry.printable import shown

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Dtypes of weights in the headers of safetensors files."""

NAMES = (*file_names(STEMS), "consolidated.pth", "vqgan.ckpt")
"""File names of the weights of a published folder: transformers' and diffusers', Chameleon's."""
Source = str | Path | Mapping[str, Any]
"""A `.pt` or `.safetensors` file, a folder of one, or of shards with their index; or the contents."""
Model = TypeVar("Model", bound=torch.nn.Module)


def from_official(
    make: Callable[[dict[str, Tensor]], Model],
    source: Source,
    left_out: Sequence[str] = (),
    *,
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> Model:
    """A model with the weights of a published file, or of its contents, in evaluation mode; refuses what does not fit,
    by the file's name.

    `make` goes from the weights, under their published keys, to a model of their sizes; `renamed` from published keys
    to the model's. `left_out` as in `read_state`.
    """
    try:
        state = read_state(source, left_out)
        model = make(state)
        load_into(model, renamed(state))
    except ValueError as error:
        if isinstance(source, Mapping):
            raise
        raise ValueError(f"{shown(source)}: {error}") from error
    return model.eval()


def read_state(source: Source, left_out: Sequence[str] = ()) -> dict[str, Tensor]:
    """The weights of an official file, or of its contents, under their plain keys, without entries whose keys contain a
    word of `left_out`: caches, tables, counts. Refuses numbers that are not finite.
    """
    contents = unwrapped(source if isinstance(source, Mapping) else read_file(Path(source)))
    state: dict[str, Tensor] = {}
    for key, value in contents.items():
        if not isinstance(value, Tensor) or any(word in str(key) for word in left_out):
            continue
        if not isinstance(key, str):
            raise ValueError(f"a weight is called {shown(repr(key))}, which is no name")
        name = plain(key)
        refuse_second(state, name)
        if problem := _problem(value):
            raise ValueError(f"the weights {shown(name)} {problem}")
        state[name] = value
    if not state:
        raise ValueError(
            f"there are no weights in it; top-level keys are {shown(', '.join(map(str, list(contents)[:6])))}"
        )
    return state


def keys_in(contents: Mapping[Any, Any]) -> set[str]:
    """The plain keys of all tensors of a checkpoint's contents."""
    return {plain(str(key)) for key, value in unwrapped(contents).items() if isinstance(value, Tensor)}


def read_header(path: Path) -> Mapping[Any, Any]:
    """The contents of a file without its numbers: every tensor is on the device `meta`, with its shape and dtype.
    Gigabytes of weights are not read; only torch's format from before 1.6 is read whole.
    """
    return _without_numbers(read_file(path, header=True))


def read_file(path: Path, header: bool = False) -> Mapping[Any, Any]:
    """The contents of a file: mappings with tensors; no code is run.

    The path is a `.safetensors` file, a pickle of torch's, or a folder of such files by their usual names. With
    `header` no numbers are read that need not be: tensors are on `meta`, or mapped into memory. Refuses other objects.
    """
    if path.is_dir():
        return _folder(path, header)
    if not path.is_file():
        raise ValueError(f"there is no file {shown(path)}")
    if path.suffix != ".safetensors":
        return read_pickle(path, mapped=header)
    try:
        return _stored(path) if header else load_file(path)
    except Exception as error:  # a damaged file can make the library raise anything
        raise ValueError(f"it is damaged, cut off, or no safetensors file ({type(error).__name__})") from None


def load_into(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state, whose keys and shapes have to be the model's. One that was built on `meta` takes its tensors."""
    own = model.state_dict()
    both = own.keys() & state.keys()
    other = [f"{k}: {list(state[k].shape)}, not {list(own[k].shape)}" for k in both if own[k].shape != state[k].shape]
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    if wrong := differences(missing=missing, unexpected=unexpected, of_another_shape=other):
        raise ValueError(f"these weights are not of this model: {wrong}")
    takes_over = any(weights.is_meta for weights in own.values())
    state = {key: aligned(weights) if takes_over else weights for key, weights in state.items()}
    model.load_state_dict(state, assign=takes_over)


def blank(make: Callable[..., Model], *args: Any, **how: Any) -> Model:
    """A model without numbers, on `meta`: `load_into` gives it those of a state."""
    with torch.device("meta"):
        return make(*args, **how)


def renamed_by(key: str, names: Iterable[tuple[str, str]]) -> str:
    """A key in which patterns are replaced, one after another."""
    for pattern, name in names:
        key = re.sub(pattern, name, key)
    return key


def shape_in(state: Mapping[str, Tensor], key: str, dims: int) -> tuple[int, ...]:
    """The shape of a weight, which has to have so many dimensions; sizes of the model are read from it."""
    if key not in state:
        raise ValueError(f"there is no {key}")
    shape = tuple(state[key].shape)
    if len(shape) != dims or 0 in shape:
        raise ValueError(f"{key} has the shape {list(shape)}; {dims} dimensions were expected")
    return shape


def count_in(state: Mapping[str, Tensor], prefix: str) -> int:
    """The number of blocks in a state, which have to be numbered from 0 on behind a prefix such as `layers.`."""
    found = {key.removeprefix(prefix).partition(".")[0] for key in state if key.startswith(prefix)}
    if not found or found != set(map(str, range(len(found)))):
        numbers = shown(", ".join(sorted(found)[-3:])) or "none"
        raise ValueError(f"blocks {prefix}0, {prefix}1, … were expected, without a gap; there is {numbers}")
    return len(found)


def _stored(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on `meta`. A dtype of integers becomes int64: no weight has one."""
    with safe_open(path, "pt") as file:
        parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  (the file is no mapping)
        return {
            key: torch.empty(part.get_shape(), dtype=DTYPES.get(part.get_dtype(), torch.int64), device="meta")
            for key, part in parts.items()
        }


def _folder(path: Path, header: bool) -> dict[str, Any]:
    """The weights of a folder's files."""
    contents: dict[str, Any] = {}
    for file in weight_files(path, NAMES):
        try:
            found = unwrapped(read_file(file, header))
        except ValueError as error:
            raise ValueError(f"{shown(file.name)}: {error}") from error
        for key, value in found.items():
            refuse_second(contents, key)
            contents[key] = value
    if not contents:
        raise ValueError("there are no weights in this folder under a usual name; name the file")
    return contents


def _without_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_numbers(inner) for key, inner in value.items()}
    dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized
    return value.to("meta") if dense else value


def _problem(weights: Tensor) -> str:
    """The reason why a tensor is refused as a weight; "" if it is not."""
    if not weights.is_floating_point():
        return f"are {weights.dtype} ({weights.layout}); dense floating-point numbers were expected"
    if problem := unfit(weights):
        return problem
    finite = weights.is_meta or bool(weights.isfinite().all())
    return "" if finite else "are not finite: there is NaN or infinity in them"
