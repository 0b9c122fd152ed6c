"""`model_index.json` of a saved pipeline, against what its class says that it takes: the one door of all pipelines.

The file names classes by library, which is a way to have code imported; diffusers before 0.42.1 went it. Here a part is
one that the pipeline's constructor has, of a class that its annotation admits, and nothing is imported to find out.
"""

import inspect
import sys
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec.untrusted import read_json

INDEX = "model_index.json"
"""What a folder of a whole pipeline has."""
MOST = 1_000_000
"""Bytes of it."""
FACTS = ("_class_name", "_diffusers_version", "_name_or_path")
"""Texts that diffusers writes into every index."""
LIBRARIES = ("transformers", "diffusers")
"""Named by their top; any other class is named by its own module."""


@dataclass(frozen=True)
class Index:
    """What a saved pipeline has, checked against its class.

    Attributes:
        folder: Where it is.
        parts: The class of every part; None of one that is left out.
        settings: Other arguments of the constructor.
    """

    folder: Path
    parts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def class_name_in(folder: Path) -> str:
    """The name of the class that a saved pipeline says it is.

    Raises:
        ValueError: The index cannot be read, or names none.
    """
    name = read_json(folder / INDEX, MOST).get("_class_name")
    if not isinstance(name, str) or not _plain(name):
        raise ValueError(f"{folder / INDEX} does not name a pipeline's class: {shown(repr(name))}")
    return name


def index_of(folder: Path, pipeline: type, given: Collection[str] = ()) -> Index:
    """The index of a saved pipeline.

    Args:
        folder: It has a `model_index.json`.
        pipeline: The class that it is loaded as; annotations of its constructor say what there can be.
        given: Parts that are there already, so that the folder may lack them.

    Raises:
        ValueError: The index cannot be read, lacks a part, or names anything that the class does not take.
    """
    held, place = read_json(folder / INDEX, MOST), folder / INDEX
    class_name_in(folder)
    takes = dict(inspect.signature(pipeline).parameters)
    hints = typing.get_type_hints(pipeline.__init__)  # type: ignore[misc]
    kinds = {key: _kinds(hints.get(key, Any), (folder / key).is_dir()) for key in takes}
    parts: dict[str, type | None] = {}
    settings: dict[str, Any] = {}
    for key, value in held.items():
        if key in FACTS:
            if not isinstance(value, str):
                raise ValueError(f"{place}: {key} is a text, not {shown(repr(value))}")
        elif key not in takes:
            raise ValueError(f"{place}: {unknown(f'part of a {pipeline.__name__}', shown(key), takes)}")
        elif kinds[key]:
            parts[key] = _named(place, key, value, kinds[key])
        else:
            settings[key] = _fitting(place, key, value, hints.get(key, Any))
    needed = [key for key, taken in takes.items() if taken.default is taken.empty and key not in given]
    lacking = [key for key in needed if key not in settings and parts.get(key) is None]
    if lacking:
        raise ValueError(f"{place} has no {', '.join(lacking)}, which a {pipeline.__name__} needs")
    return Index(folder, parts, settings)


def _kinds(hint: Any, there: bool) -> tuple[type, ...]:
    """Classes of a part that an annotation admits, all where it says nothing of a folder; none of a setting."""
    from diffusers import ModelMixin  # seconds that models of text alone need not wait

    known = (ModelMixin, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin)
    if hint is Any and there:
        return known
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(kind for kind in choices if isinstance(kind, type) and issubclass(kind, known))


def _named(place: Path, key: str, value: Any, kinds: tuple[type, ...]) -> type | None:
    """The class of a part, if it is one of those; found where it already is."""
    if value == [None, None]:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{place}: {key} is a pair of library and class, not {shown(repr(value))}")
    library, name = value
    found = None
    if all(map(_plain, [*library.split("."), name])) and library in sys.modules:
        module = sys.modules[library]
        # Both libraries import what is asked for; of other modules only what is there already is looked at.
        found = getattr(module, name, None) if library in LIBRARIES else vars(module).get(name)
    if not isinstance(found, type) or not issubclass(found, kinds):
        listed = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{place}: {key} is to be a {listed}, not {shown('.'.join(value))!r}")
    return found


def _plain(name: str) -> bool:
    """Whether a name is one that a class or a module has in public: no path, nothing private."""
    return name.isidentifier() and not name.startswith("_")


def _fitting(place: Path, key: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValueError as error:
        raise ValueError(f"{place}: {key} cannot be {shown(repr(value))}: {shown(error)}") from error
