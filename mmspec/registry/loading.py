"""Finding installed plugins and loading them one at a time: one that fails is listed and harms no one."""

import functools
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any

from mmspec.registry import switches
from mmspec.registry.fields import imported
from mmspec.registry.hookspecs import GROUP, hookimpl
from mmspec.registry.manager import Registry
from mmspec.registry.plugin import CORE, Plugin, describe
from mmspec.registry.printable import one_line, printable

_loading: ContextVar[bool] = ContextVar("loading", default=False)


@functools.cache
def installed() -> Registry:
    """The registry of everything that is installed, loaded on the first call."""
    if _loading.get():
        raise RuntimeError("a plugin cannot ask for what is installed while it is being loaded; ask when it is used")
    before = _loading.set(True)
    try:
        return load()
    finally:
        _loading.reset(before)


def load() -> Registry:
    """A new registry of everything that is installed; under `MMSPEC_STRICT` the first plugin that fails raises."""
    registry, allowed = Registry(), switches.allowed()
    found = _entry_points()
    imported: list[tuple[Plugin, Any]] = []
    for entry in found:
        record = _record(entry)
        if allowed is not None and entry.name not in allowed | {CORE}:
            registry.note(replace(record, blocked=True))
            continue
        with _isolated(registry, record, "import"):
            began = time.perf_counter()
            plugin = entry.load()
            registry.declare(plugin)
            imported.append((replace(record, seconds=time.perf_counter() - began), plugin))
    for record, plugin in imported:
        with _isolated(registry, record, "manifest"):
            registry.register(plugin, record.name, record)
    for name in sorted((allowed or set()) - {entry.name for entry in found}):
        there = ", ".join(entry.name for entry in found)
        registry.note(Plugin(name, "?", error=f"named in MMSPEC_PLUGINS but not installed; installed: {there}"))
    return registry


def answering(place: str) -> Callable[[], Any]:
    """A hook whose answer stands at `"module:Attribute"`, which is imported when somebody asks."""
    return hookimpl(lambda: imported(place, "the answer of a hook"))


def commanding(place: str) -> Callable[[Any], None]:
    """The hook `mmspec_commands` of a plugin whose function at `"module:function"` adds commands to the application."""
    return hookimpl(lambda app: imported(place, "the function that adds commands")(app))


_BESIDE: set[Path] = set()
"""The folders of plugins of one file."""


def add_file(registry: Registry, file: Path) -> Plugin:
    """Import a plugin of one file and register it: what `mmspec --plugin FILE.py` does. The module's name is the
    file's, as in `"my_drafter:Thing"`; the plugin's is that without a leading `mmspec_`.
    """
    place = Path(file).resolve()
    if place.suffix != ".py" or not place.is_file():
        raise ValueError(f"--plugin takes a Python file, and {file} is none")
    try:
        module = _import_file(place)
        if not any(hasattr(value, f"{GROUP}_impl") for value in vars(module).values()):
            raise ValueError("none of its functions is marked @mmspec.hookimpl")
        return registry.register(module, place.stem.removeprefix("mmspec_"))
    # A module that calls sys.exit() on import is as broken as one that raises.
    except (Exception, SystemExit) as error:
        raise ValueError(f"the plugin {file} cannot be used: {_explained(error, place)}") from error


def _import_file(place: Path) -> Any:
    name = place.stem
    if not name.isidentifier():
        raise ValueError(f"{place.name} is no module's name; use letters, digits and '_'")
    known = importlib.util.find_spec(name)
    origin = None if known is None or known.origin is None else Path(known.origin).resolve()
    beside = name not in sys.modules and origin is not None and origin.parent in _BESIDE
    if known is not None and origin != place and not beside:
        raise ValueError(f"there is another module {name!r}, which factories would find instead; rename the file")
    if name in sys.modules:
        return sys.modules[name]
    if place.parent not in _BESIDE:
        _BESIDE.add(place.parent)
        sys.path.append(str(place.parent))  # last: what it brings beside itself hides nothing
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _explained(error: BaseException, place: Path) -> str:
    """The error in one line, with the line of the author's file, if it was raised there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place)]
    kind = "" if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: "
    return f"{kind}{one_line(error)}" + (f" ({place.name}:{lines[-1]})" if lines else "")


@contextmanager
def _isolated(registry: Registry, record: Plugin, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    # A module that calls sys.exit() on import is as broken as one that raises.
    except (Exception, SystemExit) as error:
        registry.note(replace(record, error=describe(error)), cause=error)
    switches.trace(f"plugin {record.name}: {phase} {1e3 * (time.perf_counter() - start):.1f} ms")


def _entry_points() -> list[EntryPoint]:
    """First-party plugins first, so that nobody takes their names; then by name. One that is installed twice (a copy
    beside our wheel) is one plugin: Python imports the first of them.
    """
    unique: dict[tuple[str, str], EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        unique.setdefault((entry.name, entry.value), entry)
    return sorted(unique.values(), key=lambda e: (e.name != CORE, _distribution(e)[0] != "mmspec", e.name, e.value))


def _record(entry: EntryPoint) -> Plugin:
    distribution, version = _distribution(entry)
    return Plugin(printable(entry.name), printable(entry.value), distribution=distribution, version=version)


def _distribution(entry: EntryPoint) -> tuple[str | None, str | None]:
    return _facts(entry.dist) if entry.dist else (None, None)


@functools.cache
def _facts(distribution: Distribution) -> tuple[str, str]:
    metadata = distribution.metadata
    return printable(str(metadata["Name"])), printable(str(metadata["Version"]))
