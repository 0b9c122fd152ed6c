"""Layouts of published files: how `mmspec convert` makes of them a folder that `mmspec.Pipeline` loads.

A plugin describes its layouts in a table and returns it from the hook `mmspec_layouts`. A file is recognised by its
keys, and all files are compared with the models by their headers, before any weights are read.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from huggingface_hub import ModelCard, ModelCardData

from mmspec.cli import convert
from mmspec.files import save_whole
from mmspec.hosts.pickles import PICKLED
from mmspec.hosts.weight_files import CONFIG, INDEX, SAFE, weight_files
from mmspec.kits.pictures.models.official import NAMES, keys_in, read_header
from mmspec.registry import installed
from mmspec.registry.options import build, explain
from mmspec.registry.printable import printable, shown
from mmspec.untrusted import read_json


@dataclass(frozen=True)
class Part:
    name: str  # the pipeline's argument that takes the model
    # From a file, or its contents, and a configuration to the model, as a class's `from_official`
    load: Callable[..., torch.nn.Module]
    marks: frozenset[str]  # plain keys that every such file has, and no file of another part of any layout
    holds: str  # what the file is, with its published names
    config: tuple[str, ...] = ()  # names of the layout's options that `load` takes
    without: str = "."  # what no key of such a file begins with; transformers stores some of the models with more parts
    # From the folder of the weights to further arguments of `load`, such as what a `config.json` says
    beside: Callable[[Path], Mapping[str, Any]] | None = None

    def fits(self, keys: set[str]) -> bool:
        """True if a file with these plain keys may be this part."""
        return self.marks <= keys and not any(key.startswith(self.without) for key in keys)


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
                raise ValueError(f"{shown(file)}: {_needs_none(file) or error}") from error
            keys = keys_in(header)
            own = [part.name for _, part in _nearest(keys) if part in self.parts]
            if not own:
                raise ValueError(f"{shown(file)} is no file of {self.name!r}: {_instead(file, keys)}")
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


SEVERAL = 16  # files of a folder that are looked into


def command_for(place: Path) -> str:
    """The words about published files, a folder or one of them, with the command that converts them; "" where they are
    of no layout. Parts that are not there, and options that have to be given, are words in capitals.
    """
    known, named = _parts_at(place), printable(str(place))
    layout = next((layout for layout, part, _ in known if part is layout.parts[0]), None)
    if layout is None:
        owners = " or of ".join(repr(owner.name) for owner, _, _ in known)
        return f"{named} is a part of {owners}: mmspec convert takes it with the model" if owners else ""
    there = {part.name: shlex.quote(printable(str(file))) for owner, part, file in known if owner is layout}
    required = [option for option in explain(layout.options) if not option.default]
    words = [there.get(part.name, part.name.upper()) for part in layout.parts]
    words += [f"--opt {option.name}={option.name.upper()}" for option in required]
    said = [f"; {part.name.upper()}: {part.holds}" for part in layout.parts if part.name not in there]
    said += [f"; {option.name.upper()}: {option.help}" for option in required]
    how = f"mmspec convert {layout.name} {' '.join(words)} -o FOLDER{''.join(said)}"
    return f"{named} is as the authors of {layout.name} publish it; convert it once, and name the new folder: {how}"


def _parts_at(place: Path) -> list[tuple[Layout, Part, Path]]:
    """The parts that a folder may be, or else its files, or that a file may be."""
    if whole := _fitting(place):
        return [(*each, place) for each in whole]
    inside = sorted(place.glob("*.*")) if place.is_dir() else []
    files = [file for file in inside if file.suffix in (*PICKLED, SAFE, ".ckpt")]
    return [(*each, file) for file in files[:SEVERAL] for each in _fitting(file)]


def _fitting(place: Path) -> list[tuple[Layout, Part]]:
    """The layouts of which published files are a part, by their keys and by what stands beside them."""
    try:
        keys = keys_in(read_header(place))
    except ValueError:
        return []
    return [(layout, part) for layout, part in _nearest(keys) if _stands(part, _folder(place))]


def _nearest(keys: set[str]) -> list[tuple[Layout, Part]]:
    """The layouts of which a file with these keys may be a part: those that know the most of its keys."""
    found = [(layout, part) for layout in layouts().values() for part in layout.parts if part.fits(keys)]
    most = max((len(part.marks) for _, part in found), default=0)
    return [(layout, part) for layout, part in found if len(part.marks) == most]


def _stands(part: Part, folder: Path) -> bool:
    """True unless what stands beside a part's weights is another model's."""
    try:
        return part.beside is None or bool(part.beside(folder))
    except Exception:  # a file of something else can make the libraries raise anything
        return False


def _needs_none(place: Path) -> str:
    """The words about a folder that is loaded as it is; "" of any other."""
    config = read_json(place / CONFIG) if (place / CONFIG).is_file() else {}
    named = config.get("architectures")
    target = installed().target_of([str(name) for name in named] if isinstance(named, list) else [])
    if not (place / INDEX).is_file() and (target is None or not target.pipeline):
        return ""
    return f"it needs no conversion, mmspec.Pipeline.from_pretrained({printable(str(place))!r}) loads it as it is"


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


def _instead(file: Path, keys: set[str]) -> str:
    """Say which layout a file has that is not of the layout that the user named; if none is known, the nearest one."""
    if not _fitting(file) and (needs_none := _needs_none(file)):
        return needs_none
    if owners := _nearest(keys):
        return f"it is the {owners[0][1].name} of " + " or of ".join(repr(layout.name) for layout, _ in owners)
    every = [(layout, part) for layout in layouts().values() for part in layout.parts]
    layout, part = max(every, key=lambda each: len(each[1].marks & keys) / len(each[1].marks))
    there = len(part.marks & keys)
    first = shown(", ".join(sorted(keys)[:3])) or "none"
    if not there:
        return f"it is of no known layout ({', '.join(layouts())}); its first keys are {first}"
    lacks = ", ".join(sorted(part.marks - keys))
    return f"nearest is the {part.name} of {layout.name!r}, but it has no {lacks}; its first keys are {first}"
