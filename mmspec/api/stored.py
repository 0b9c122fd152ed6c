"""A folder that `save_pretrained` wrote: `model_index.json`, checked against its class's constructor, and its parts.

The file names classes by library, so a malicious file can have code imported; diffusers before 0.42.1 did so. Here
every part must be an argument of the constructor, of a class that its annotation allows, and nothing is imported.
"""

import inspect
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin

import torch
from huggingface_hub import hf_hub_download, snapshot_download
from pydantic import ConfigDict, TypeAdapter
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from mmspec.api.saved import checked_method
from mmspec.hosts.loading import architectures, load_part, local_folder, refuse_pickles, unloaded
from mmspec.hosts.outline import Outline, outline, outlined, place_of
from mmspec.hosts.remote_code import refusing_code
from mmspec.hosts.weight_files import INDEX, refuse_config
from mmspec.registry import installed
from mmspec.registry.fields import imported
from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec.untrusted import read_json

MOST = 1_000_000  # the most bytes of that file that are read
FACTS = ("_class_name", "_diffusers_version", "_name_or_path")  # keys of texts that diffusers writes into every index
LIBRARIES = ("transformers", "diffusers")
"""Libraries whose classes are named by the top-level package; any other class is named by its own module."""
FETCHED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Files of a pipeline that are fetched from the hub: configurations, weights, tokenizers; no code, no pickles."""


class Index(NamedTuple):
    """The entries of the index, as the constructor takes them."""

    parts: Mapping[str, type | None]  # the class of every part; None for a part that is left out
    settings: Mapping[str, Any]  # the other arguments


@dataclass(frozen=True)
class Stored:
    """The folder of a saved pipeline. Its files are read when something of them is asked for, once, before weights."""

    folder: Path
    kind: Any = None  # the pipeline's class; None: the one that the index names

    @classmethod
    def named(cls, name: str, kind: Any = None) -> "Stored | None":
        """The saved pipeline of that name on this machine, if the name means one; refuses weights that are a pickle."""
        folder = local_folder(name)
        if folder is None or not (folder / INDEX).is_file():
            return None
        stored = cls(folder, kind)
        for part in sorted(stored.entries):
            refuse_pickles(folder / part)
        return stored

    @classmethod
    def fetched(cls, name: str, kind: Any, given: Collection[str]) -> "Stored":
        """A pipeline of the hub, whose index is fetched and checked first; no code and no pickles are fetched."""
        with refusing_code(f"the pipeline {name!r}"):
            index = hf_hub_download(name, INDEX)
        cls(Path(index).parent, kind).refuse_incomplete(given)
        with refusing_code(f"the pipeline {name!r}"):
            return cls(Path(snapshot_download(name, allow_patterns=FETCHED)), kind)

    @cached_property
    def entries(self) -> Mapping[str, Any]:
        """The index as it was written; refuses one that names no class."""
        entries = read_json(self.folder / INDEX, MOST)
        name = entries.get("_class_name")
        if not isinstance(name, str) or not _plain(name):
            raise ValueError(f"{self.folder / INDEX} does not name a pipeline's class: {shown(repr(name))}")
        return entries

    @cached_property
    def pipeline(self) -> Any:
        """The pipeline's class; refuses a name that no installed plugin has."""
        if self.kind is not None:
            return self.kind
        name, registry = self.entries["_class_name"], installed()
        targets = [c for c in registry.components("target") if c.pipeline]
        for target in targets:
            if target.pipeline.rpartition(":")[2] == name:
                return target.load_pipeline()
        asked = (registry.ask(plugin.name, "mmspec_pipelines") or () for plugin in registry.plugins())
        others = {place.rpartition(":")[2]: place for answer in asked for found in answer for place in found}
        if name in others:
            return imported(others[name], f"the pipeline {name}")
        known = ", ".join(sorted({c.pipeline.rpartition(":")[2] for c in targets} | others.keys())) or "none"
        raise ValueError(
            f"{str(self.folder)!r} holds a {name}, which no installed plugin has; there is {known}. "
            "Pipelines of diffusers that denoise are loaded by diffusers, and sped up by mmspec.enable(pipeline)"
        )

    @cached_property
    def index(self) -> Index:
        """The entries, checked against the annotations of the class's constructor."""
        place, takes, hints = self.folder / INDEX, _takes(self.pipeline), _hints(self.pipeline)
        kinds = {key: _kinds(hints.get(key, Any), (self.folder / key).is_dir()) for key in takes}
        parts: dict[str, type | None] = {}
        settings: dict[str, Any] = {}
        for key, value in self.entries.items():
            if key in FACTS:
                if not isinstance(value, str):
                    raise ValueError(f"{place}: {key} is a text, not {shown(repr(value))}")
            elif key not in takes:
                raise ValueError(f"{place}: {unknown(f'part of a {self.pipeline.__name__}', shown(key), takes)}")
            elif kinds[key]:
                parts[key] = _part_class(place, key, value, kinds[key])
            else:
                settings[key] = _setting(place, key, value, hints.get(key, Any))
        return Index(parts, settings)

    def refuse_incomplete(self, given: Collection[str] = ()) -> None:
        """Refuse an index that lacks an argument of the class; those in `given` it may lack."""
        needed = [key for key, taken in _takes(self.pipeline).items() if taken.default is taken.empty]
        parts, settings = self.index
        lacking = [key for key in needed if key not in given and key not in settings and parts.get(key) is None]
        if lacking:
            what = f"which a {self.pipeline.__name__} needs"
            raise ValueError(f"{self.folder / INDEX} has no {', '.join(lacking)}, {what}")

    def load(self, dtype: torch.dtype, given: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's arguments, some of which are `given`; models are in evaluation mode.

        diffusers does not read the folder: it would import the modules that its index names. Refuses a part that is
        damaged, incomplete, or does not fit its config.
        """
        self.refuse_incomplete(given)
        parts: dict[str, Any] = {}
        for part, kind in self.index.parts.items():
            if part in given:
                continue
            folder = self.folder / part
            if kind is not None and not folder.is_dir():
                what = f"there is no folder {part}, its {kind.__name__}"
                raise ValueError(f"the pipeline in {self.folder} is not complete: {what}")
            if kind is None:
                parts[part] = None
            elif issubclass(kind, torch.nn.Module):
                parts[part] = load_part(kind, folder, dtype)
            else:
                loads: Any = kind
                with refusing_code(f"the {part} in {self.folder}"):
                    parts[part] = loads.from_pretrained(str(folder), trust_remote_code=False)
        return {**self.index.settings, **parts, **given}

    def method(self, how: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `use`: those in `how`, then the saved ones, which a method or drafter in `how` drops."""
        return dict(how) if {"method", "drafter"} & how.keys() else {**checked_method(self.folder), **how}


def advice_on(name: str) -> str:
    """The words of the first plugin that knows stored files which no pipeline loads as they are; "" if none does."""
    registry = installed()
    answers = (registry.ask(plugin.name, "mmspec_advice", files=name) for plugin in registry.plugins())
    return next(filter(None, answers), "")


@contextmanager
def advising(name: str) -> Iterator[None]:
    """Say in the place of a refusal what to do with the files of that name, if a plugin knows them."""
    try:
        yield
    except ValueError as error:
        if advice := advice_on(name):
            raise ValueError(advice) from error
        raise


def pipeline_of(stored: Stored | None, name: str) -> Any:
    """The pipeline class for a stored model: what was saved, or the pipeline of the target that declares the model's
    architecture; None for any other model.
    """
    if stored is not None:
        return stored.pipeline
    target = installed().target_of(architectures(name))
    return None if target is None else target.load_pipeline()


def places_of(stored: Stored | None, name: str, *parts: str) -> list[str]:
    """Where to load parts from: their folders in a saved pipeline, or the plain model of that name for each."""
    if stored is None:
        return [name] * len(parts)
    stored.refuse_incomplete()
    return [str(stored.folder / part) for part in parts]


def _takes(pipeline: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(pipeline).parameters)


def _hints(pipeline: type) -> dict[str, Any]:
    return typing.get_type_hints(pipeline.__init__)  # type: ignore[misc]


def _kinds(hint: Any, has_folder: bool) -> tuple[type, ...]:
    """The classes that an annotation allows for a part, without one all if the pipeline has a folder of its name; empty
    for a setting.
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
    hints = _hints(pipeline)
    for key, value in arguments.items():
        if isinstance(value, str | Path) and (kinds := _kinds(hints.get(key, Any), has_folder=False)):
            listed = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{key}= is to be a live {listed}, not {shown(repr(str(value)))}: load it before")


def outline_of(name: str) -> Outline:
    """The outline of a model, or of a pipeline's target model; no weights are loaded."""
    stored = Stored(place_of(name))
    if not (stored.folder / INDEX).is_file():
        return outline(name)
    part = stored.pipeline.target_module
    stored.refuse_incomplete()
    entry, folder = stored.index.parts[part], stored.folder / part
    refuse_config(folder, {})
    return outlined(lambda: unloaded(entry, str(folder)), stored.folder)
