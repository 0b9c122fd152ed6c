"""Layouts of published files: how `mmspec convert` makes of them a folder that `mmspec.Pipeline` loads.

A plugin describes its layouts in a table and returns it from the hook `mmspec_layouts`. A file is recognised by its
keys, and all files are compared with the models by their headers, before any weights are read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from huggingface_hub import ModelCard, ModelCardData

from mmspec.cli import convert
from mmspec.files import save_whole
from mmspec.hosts.weight_files import weight_files
from mmspec.kits.pictures.models.official import NAMES, keys_in, read_header
from mmspec.registry.options import build
from mmspec.registry.printable import shown


@dataclass(frozen=True)
class Part:
    name: str  # the pipeline's argument that takes the model
    # From a file, or its contents, and a configuration to the model, as a class's `from_official`
    load: Callable[..., torch.nn.Module]
    marks: frozenset[str]  # plain keys that every such file has, and no file of another part of any layout
    holds: str  # what the file is, with its published names
    config: tuple[str, ...] = ()  # names of the layout's options that `load` takes
    # From the folder of the weights to further arguments of `load`, such as what a `config.json` says
    beside: Callable[[Path], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class NoOptions:
    """The files tell everything."""


@dataclass(frozen=True)
class Layout:
    """The published files of a model."""

    name: str  # the model's name on the command line
    summary: str  # what the model is, in a sentence
    parts: tuple[Part, ...]  # its files
    # Makes the pipeline; its arguments are the parts and the options in `settings`
    pipeline: Callable[..., DiffusionPipeline]
    source: str  # where the files are published
    licence: str  # the licence, as far as it is known
    target: str = ""  # the target adapter that runs the model; "" where its pipeline drafts nothing
    options: type = NoOptions  # a frozen dataclass of what the weights do not tell; None is: not given
    settings: tuple[str, ...] = ()  # names of the options that the pipeline takes
    # From the folders of all parts, by their names, to further arguments of the pipeline, such as a processor
    beside: Callable[[Mapping[str, Path]], Mapping[str, Any]] | None = None

    def convert(self, files: Sequence[Path], folder: Path, values: Mapping[str, Any]) -> None:
        """Write the pipeline of published files into a folder, whole or not at all; the folder does not exist yet, or
        is empty.

        There is one file of every part, or its folder, in any order; `values` are those of `options`, by name. Refuses,
        by the file's name, what is missing, there twice, damaged, or of another layout or size.
        """
        given = {k: v for k, v in vars(build(self.options, values, f"layout {self.name!r}")).items() if v is not None}
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{shown(folder)} holds files already; name a new folder")
        found = self._recognised(files)
        configs = {part.name: self._config(part, found[part.name][0], given) for part in self.parts}
        settings = {key: given[key] for key in self.settings if key in given}
        if self.beside is not None:
            settings |= self.beside({name: _folder(file) for name, (file, _) in found.items()})
        with torch.device("meta"):  # sizes, keys, and whether the parts fit each other
            blank = {part.name: _fitted(part, *found[part.name], configs[part.name]) for part in self.parts}
            self.pipeline(**blank, **settings)
        modules = {part.name: part.load(found[part.name][0], **configs[part.name]) for part in self.parts}
        pipe = self.pipeline(**modules, **settings)

        def write(side: Path) -> None:
            pipe.save_pretrained(side)
            self._card([found[part.name][0] for part in self.parts]).save(side / "README.md")

        save_whole(folder, write)

    def _recognised(self, files: Sequence[Path]) -> dict[str, tuple[Path, Mapping[Any, Any]]]:
        """The file of every part, and its header."""
        found: dict[str, tuple[Path, Mapping[Any, Any]]] = {}
        for file in files:
            try:
                header = read_header(file)
            except ValueError as error:
                raise ValueError(f"{shown(file)}: {error}") from error
            keys = keys_in(header)
            fitting = [part for layout in layouts().values() for part in layout.parts if part.marks <= keys]
            most = max((len(part.marks) for part in fitting), default=0)
            own = [part.name for part in self.parts if part in fitting and len(part.marks) == most]
            if not own:
                raise ValueError(f"{shown(file)} is no file of {self.name!r}: {_instead(keys)}")
            name = own[0]
            if name in found:
                raise ValueError(f"{shown(found[name][0])} and {shown(file)} are both the {name}; give one of them")
            found[name] = file, header
        missing = [f"the {part.name} ({part.holds})" for part in self.parts if part.name not in found]
        if missing:
            raise ValueError(f"{self.name!r} lacks {' and '.join(missing)}; the files are at {self.source}")
        return found

    @staticmethod
    def _config(part: Part, file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a part's `load` beside its file."""
        config = {key: given[key] for key in part.config if key in given}
        return config if part.beside is None else config | dict(part.beside(_folder(file)))

    def _card(self, files: Sequence[Path]) -> ModelCard:
        """The folder's card: what was converted, where it is from, and its licence."""
        ran_by = {"target": self.target} if self.target else {}
        data = ModelCardData(
            library_name="diffusers",
            license="other",
            license_name=self.licence,
            mmspec={**ran_by, "layout": self.name, "source": self.source},
        )
        listed = "\n".join(f"- `{shown(file.name)}`, {_size(file):,} bytes" for file in files)
        text = f"# {self.name}\n\n{self.summary} Licence: {self.licence}. Published at {self.source}.\n"
        how = f"\n`mmspec convert {self.name}` made this folder from:\n\n{listed}\n"
        return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}{how}")


def layouts() -> dict[str, Layout]:
    """The layouts of all installed plugins that are described with this class, by name."""
    return {name: layout for name, layout in convert.layouts().items() if isinstance(layout, Layout)}


def _folder(file: Path) -> Path:
    return file if file.is_dir() else file.parent


def _size(file: Path) -> int:
    """Bytes of a file, or of the weights of a folder."""
    return sum(each.stat().st_size for each in ([file] if file.is_file() else weight_files(file, NAMES)))


def _fitted(part: Part, file: Path, header: Mapping[Any, Any], config: Mapping[str, Any]) -> torch.nn.Module:
    """The model of a header, without numbers."""
    try:
        return part.load(header, **config)
    except ValueError as error:
        raise ValueError(f"{shown(file)} (the {part.name}): {error}") from error
    except Exception as error:  # a wrong configuration can make the libraries raise anything
        what = f"{type(error).__name__}: {shown(error)}"
        raise ValueError(f"{shown(file)} (the {part.name}) and what stands beside it fit no model: {what}") from error


def _instead(keys: set[str]) -> str:
    """Say which layout a file has that is not of the layout that the user named; if none is known, the nearest one."""
    every = [(layout, part) for layout in layouts().values() for part in layout.parts]
    if fitting := [(layout, part) for layout, part in every if part.marks <= keys]:
        most = max(len(part.marks) for _, part in fitting)
        owners = [(layout.name, part.name) for layout, part in fitting if len(part.marks) == most]
        return f"it is the {owners[0][1]} of " + " or of ".join(repr(name) for name, _ in owners)
    layout, part = max(every, key=lambda each: len(each[1].marks & keys) / len(each[1].marks))
    there = len(part.marks & keys)
    first = shown(", ".join(sorted(keys)[:3])) or "none"
    if not there:
        return f"it is of no known layout ({', '.join(layouts())}); its first keys are {first}"
    lacks = ", ".join(sorted(part.marks - keys))
    return f"nearest is the {part.name} of {layout.name!r}, but it has no {lacks}; its first keys are {first}"
