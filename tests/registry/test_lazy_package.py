"""`import mmspec` is light; its exports arrive on first use."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mmspec
import mmspec.authors
import mmspec.testing

HEAVY = ("torch", "transformers", "diffusers", "pydantic", "typer")


@pytest.mark.parametrize(
    "code",
    [
        "import mmspec.authors",
        "import mmspec.registry.options",
        "import mmspec.registry as r; r.installed().components()",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    script = f"import sys; {code}; print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_exports_are_the_objects_themselves() -> None:
    from mmspec.registry import DrafterSpec, hookimpl

    assert mmspec.DrafterSpec is DrafterSpec and mmspec.hookimpl is hookimpl
    assert {
        "DrafterSpec",
        "MethodSpec",
        "Decoder",
        "Draft",
        "Distribution",
        "enable",
        "disable",
        "custom_generate",
    } <= set(dir(mmspec))
    with pytest.raises(AttributeError, match="no attribute 'enabel'"):
        mmspec.enabel  # noqa: B018


SURFACES = (mmspec, mmspec.authors, mmspec.testing)


@pytest.mark.parametrize(("surface", "name"), [(surface, name) for surface in SURFACES for name in surface._HOMES])
def test_every_export_arrives(surface: ModuleType, name: str) -> None:
    assert getattr(surface, name) is not None and name in dir(surface)


@pytest.mark.parametrize("surface", SURFACES)
def test_type_checkers_see_the_same_exports(surface: ModuleType) -> None:
    tree = ast.parse(Path(inspect.getfile(surface)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == surface._HOMES
