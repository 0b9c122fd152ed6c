"""Reading a saved pipeline: `model_index.json`, checked against its class's constructor, and the parts that it names.

The file names classes by library, so a malicious file can have code imported; diffusers before 0.42.1 did so. Here
every part must be an argument of the constructor, of a class that its annotation allows, and nothing is imported.
"""

import inspect
import sys
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import torch
from pydantic import ConfigDict, TypeAdapter
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from mmspec.hosts.loading import load_checked, refuse_pickles
from mmspec.hosts.remote_code import refusing_code
from mmspec.hosts.weight_files import INDEX
from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec.untrusted import read_json

MOST = 1_000_000
"""The most bytes of that file that are read."""
FACTS = ("_class_name", "_diffusers_version", "_name_or_path")
"""Keys of texts that diffusers writes into every index."""
LIBRARIES = ("transformers", "diffusers")
"""Libraries whose classes are named by the top-level package; any other class is named by its own module."""


@dataclass(frozen=True)
class Index:
    """The content of a saved pipeline, checked against its class."""

    folder: Path  # the pipeline's folder
    parts: Mapping[str, Any] = field(default_factory=dict)  # the class of every part; None for a part that is left out
    settings: Mapping[str, Any] = field(default_factory=dict)  # the other arguments of the constructor


def class_name_in(folder: Path) -> str:
    """The class name in a saved pipeline's index.

    Raises:
        ValueError: The index cannot be read, or names no class.
    """
    name = read_json(folder / INDEX, MOST).get("_class_name")
    if not isinstance(name, str) or not _plain(name):
        raise ValueError(f"{folder / INDEX} does not name a pipeline's class: {shown(repr(name))}")
    return name


def index_of(folder: Path, pipeline: type, given: Collection[str] = ()) -> Index:
    """The index of a saved pipeline.

    The annotations of the class's constructor say which parts and settings are allowed. The folder may lack the parts
    that are `given`.

    Raises:
        ValueError: The index cannot be read, lacks a part, or has an entry that the class does not take.
    """
    entries, place = read_json(folder / INDEX, MOST), folder / INDEX
    class_name_in(folder)
    takes = dict(inspect.signature(pipeline).parameters)
    hints = typing.get_type_hints(pipeline.__init__)  # type: ignore[misc]
    kinds = {key: _kinds(hints.get(key, Any), (folder / key).is_dir()) for key in takes}
    parts: dict[str, type | None] = {}
    settings: dict[str, Any] = {}
    for key, value in entries.items():
        if key in FACTS:
            if not isinstance(value, str):
                raise ValueError(f"{place}: {key} is a text, not {shown(repr(value))}")
        elif key not in takes:
            raise ValueError(f"{place}: {unknown(f'part of a {pipeline.__name__}', shown(key), takes)}")
        elif kinds[key]:
            parts[key] = _part_class(place, key, value, kinds[key])
        else:
            settings[key] = _setting(place, key, value, hints.get(key, Any))
    needed = [key for key, taken in takes.items() if taken.default is taken.empty and key not in given]
    lacking = [key for key in needed if key not in settings and parts.get(key) is None]
    if lacking:
        raise ValueError(f"{place} has no {', '.join(lacking)}, which a {pipeline.__name__} needs")
    return Index(folder, parts, settings)


def _kinds(hint: Any, has_folder: bool) -> tuple[type, ...]:
    """The classes that an annotation allows for a part; empty for a setting.

    An argument without an annotation is a part of any class if the pipeline has a folder of its name.
    """
    from diffusers import ModelMixin  # this import takes seconds, which language models alone need not spend

    known = (ModelMixin, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin)
    if hint is Any and has_folder:
        return known
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(kind for kind in choices if isinstance(kind, type) and issubclass(kind, known))


def _part_class(place: Path, key: str, value: Any, kinds: tuple[type, ...]) -> type | None:
    """The class that an entry names, if it is a subclass of one of `kinds`; only loaded modules are searched."""
    if value == [None, None]:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{place}: {key} is a pair of library and class, not {shown(repr(value))}")
    library, name = value
    found = None
    if all(map(_plain, [*library.split("."), name])) and library in sys.modules:
        module = sys.modules[library]
        # The two libraries import their own classes lazily; of other modules only existing names are read.
        found = getattr(module, name, None) if library in LIBRARIES else vars(module).get(name)
    if not isinstance(found, type) or not issubclass(found, kinds):
        listed = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{place}: {key} is to be a {listed}, not {shown('.'.join(value))!r}")
    return found


def _plain(name: str) -> bool:
    """True if a name is a public identifier, and no path."""
    return name.isidentifier() and not name.startswith("_")


def _setting(place: Path, key: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValueError as error:
        raise ValueError(f"{place}: {key} cannot be {shown(repr(value))}: {shown(error)}") from error


def refuse_names(pipeline: type, arguments: Mapping[str, Any]) -> None:
    """Refuse a name or a path in the place of a live part."""
    hints = typing.get_type_hints(pipeline.__init__)  # type: ignore[misc]
    for key, value in arguments.items():
        if isinstance(value, str | Path) and (kinds := _kinds(hints.get(key, Any), has_folder=False)):
            listed = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{key}= is to be a live {listed}, not {shown(repr(str(value)))}: load it before")


def load_parts(index: Index, dtype: torch.dtype, without: Collection[str] = ()) -> dict[str, Any]:
    """The parts of a saved pipeline by name, but those in `without`; models are in evaluation mode.

    Raises:
        ValueError: A part is damaged, incomplete, or does not fit its config; the message names keys and shapes.
    """
    parts: dict[str, Any] = {}
    for part, kind in index.parts.items():
        if part in without:
            continue
        folder = index.folder / part
        if kind is not None and not folder.is_dir():
            what = f"there is no folder {part}, its {kind.__name__}"
            raise ValueError(f"the pipeline in {index.folder} is not complete: {what}")
        if kind is None:
            parts[part] = None
        elif issubclass(kind, torch.nn.Module):
            parts[part] = load_part(kind, folder, dtype)
        else:
            with refusing_code(f"the {part} in {index.folder}"):
                parts[part] = kind.from_pretrained(str(folder), trust_remote_code=False)
    return parts


def load_part(kind: Any, folder: Path, dtype: torch.dtype) -> Any:
    """One model of a pipeline, from a folder with a `config.json` and safetensors files.

    Raises:
        ValueError: The weights are a pickle, damaged, incomplete, or do not fit the config.
    """
    refuse_pickles(folder)
    how: dict[str, Any] = {"torch_dtype": dtype, "low_cpu_mem_usage": False}  # as diffusers does without accelerate
    of_transformers = issubclass(kind, PreTrainedModel)
    if of_transformers:
        how = {"dtype": dtype, "trust_remote_code": False}
    # An encoder of transformers may be stored in a file that also holds a decoder.
    return load_checked(kind, str(folder), f"the {kind.__name__} in {folder}", how, more=of_transformers)
