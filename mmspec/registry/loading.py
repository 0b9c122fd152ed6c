"""Finding installed plugins and loading them one at a time: one that fails is listed and harms no one."""

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any

from mmspec.registry import switches
from mmspec.registry.hookspecs import GROUP
from mmspec.registry.manager import Registry
from mmspec.registry.plugin import CORE, Plugin, describe


@functools.cache
def installed() -> Registry:
    """The registry of everything that is installed, loaded on the first call."""
    return load()


def load() -> Registry:
    """A new registry of everything that is installed.

    Raises:
        PluginError: Under `MMSPEC_STRICT`, at the first plugin that fails.
    """
    registry, allowed = Registry(), switches.allowed()
    found = _entry_points()
    imported: list[tuple[Plugin, Any]] = []
    for entry in found:
        record = _record(entry)
        if allowed is not None and entry.name not in allowed | {CORE}:
            registry.note(replace(record, blocked=True))
            continue
        with _isolated(registry, record, "import"):
            plugin = entry.load()
            registry.declare(plugin)
            imported.append((record, plugin))
    for record, plugin in imported:
        with _isolated(registry, record, "manifest"):
            registry.register(plugin, record.name, record)
    for name in sorted((allowed or set()) - {entry.name for entry in found}):
        there = ", ".join(entry.name for entry in found)
        registry.note(Plugin(name, "?", error=f"named in MMSPEC_PLUGINS but not installed; installed: {there}"))
    return registry


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
    """First-party plugins first, so that nobody takes their names; then by name.

    A plugin that is installed twice (a copy beside our wheel) is one plugin: Python imports the first of them.
    """
    unique: dict[tuple[str, str], EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        unique.setdefault((entry.name, entry.value), entry)
    return sorted(unique.values(), key=lambda e: (e.name != CORE, _distribution(e)[0] != "mmspec", e.name, e.value))


def _record(entry: EntryPoint) -> Plugin:
    distribution, version = _distribution(entry)
    return Plugin(entry.name, entry.value, distribution=distribution, version=version)


def _distribution(entry: EntryPoint) -> tuple[str | None, str | None]:
    return _facts(entry.dist) if entry.dist else (None, None)


@functools.cache
def _facts(distribution: Distribution) -> tuple[str, str]:
    metadata = distribution.metadata
    return metadata["Name"], metadata["Version"]
