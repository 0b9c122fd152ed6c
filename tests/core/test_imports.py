"""Imports within mmspec and within its plugins have no circle; those inside functions and for types count, too."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mmspec

ROOT = Path(mmspec.__file__).parents[1]
PACKAGES = [ROOT / "mmspec", *sorted((ROOT / "plugins").glob("mmspec_*"))]
MODULES = {
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in package.rglob("*.py")
}


def imported(module: str) -> Iterator[str]:
    """Modules of ours that a module imports, anywhere in its file; a package's own re-exports are left out."""
    for node in ast.walk(_tree(module)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            found = _resolved(name)
            if found is not None and found != module:
                yield found


def _resolved(name: str) -> str | None:
    """The module that `name` (a module, or a member of one) lives in; of a package, the module that it re-exports."""
    if name in MODULES:
        return name
    package, _, member = name.rpartition(".")
    if package not in MODULES:
        return None
    return _exports(package).get(member, package)


@cache
def _exports(package: str) -> dict[str, str]:
    """Names that a package re-exports, and where from."""
    if MODULES[package].name != "__init__.py":
        return {}
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(_tree(package))
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
    }


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def _room(module: str) -> str:
    """A folder of mmspec, or a plugin."""
    package, *inside = module.split(".")
    return ".".join([package, *inside[:1]]) if package == "mmspec" else package


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The imports of every module; not made where tests are only collected."""
    return {module: set(imported(module)) for module in MODULES}


@pytest.mark.parametrize("room", sorted({_room(module) for module in MODULES}))
def test_no_import_is_circular(room: str, graph: dict[str, set[str]]) -> None:
    """No circle of imports leads through a module of the room."""
    for start in sorted(module for module in MODULES if _room(module) == room):
        path = _way_back(start, graph)
        assert path is None, " → ".join(path)


def _way_back(start: str, graph: dict[str, set[str]]) -> list[str] | None:
    """A shortest way along imports from a module to itself."""
    ways, seen = [[start]], {start}
    for way in ways:
        for module in sorted(graph[way[-1]]):
            if module == start:
                return [*way, start]
            if module not in seen:
                seen.add(module)
                ways.append([*way, module])
    return None
