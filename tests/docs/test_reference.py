"""The reference names every hook, spec and protocol that authors may need; the site renders them from docstrings."""

import ast
import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

import mmspec
from mmspec import authors
from mmspec.registry import hookspecs
from mmspec.registry.specs import SPECS

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "authors" / "reference.md").read_text()
LISTED = re.findall(r"^::: (\S+)", REFERENCE, re.MULTILINE)
HOOKS = [n for n in ast.parse(inspect.getsource(hookspecs)).body if isinstance(n, ast.FunctionDef)]
LEFT_OUT = {"mmspec.core.history_processors.Processor", "mmspec.core.round.Passes"}
"""Protocols that no plugin implements: transformers' own, and one of the loop's."""


def protocols() -> Iterator[tuple[str, ast.ClassDef]]:
    """The public protocols of the core and of the hosts' recurrent layers, by path."""
    for file in [*(ROOT / "mmspec" / "core").glob("**/*.py"), ROOT / "mmspec" / "hosts" / "tree_op.py"]:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for found in ast.parse(file.read_text()).body:
            public = isinstance(found, ast.ClassDef) and not found.name.startswith("_")
            if public and any(ast.unparse(base).endswith("Protocol") for base in found.bases):
                yield f"{module}.{found.name}", found


PROTOCOLS = dict(protocols())


@pytest.mark.parametrize("path", sorted(PROTOCOLS.keys() - LEFT_OUT))
def test_every_protocol_is_listed_and_all_its_members_are_described(path: str) -> None:
    assert path in LISTED, f"docs/authors/reference.md lacks ::: {path}"
    assert ast.get_docstring(PROTOCOLS[path])
    for member in PROTOCOLS[path].body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            assert ast.get_docstring(member), f"{path}.{member.name} has no docstring"


def test_a_docstring_says_what_a_thing_is() -> None:
    """A noun or a verb is its beginning, not a question."""
    questions = re.compile(r'"""(What|Whether|How|Which|Who|Why) ')
    for file in [*(ROOT / "mmspec").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]:
        found = questions.search(file.read_text())
        assert not found, f"{file.relative_to(ROOT)}: {found and found[0]}"


def documented() -> Iterator[tuple[str, str]]:
    """The docstrings of classes and functions, by path, that neither users nor authors of plugins call."""
    exported = [getattr(home, name) for home in (mmspec, authors) for name in home._HOMES]
    made = [found for found in exported if isinstance(found, type | FunctionType)]
    called = {*LISTED, *(f"{found.__module__}.{found.__qualname__}" for found in made)}

    def inside(node: ast.Module | ast.ClassDef, path: str) -> Iterator[tuple[str, str]]:
        for found in node.body:
            if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{path}.{found.name}"
                if name not in called and not found.name.endswith("Pipeline"):
                    yield name, ast.get_docstring(found) or ""
                    yield from inside(found, name) if isinstance(found, ast.ClassDef) else ()

    for base in (ROOT, ROOT / "plugins"):
        for file in base.glob("mmspec*/**/*.py"):
            path = ".".join(file.relative_to(base).with_suffix("").parts)
            if not path.startswith("mmspec.core"):  # whose functions of tensors list the shapes of their arguments
                yield from inside(ast.parse(file.read_text()), path)


def test_sections_stand_where_users_and_authors_read_them() -> None:
    section = re.compile(r"^(Args|Returns|Yields|Raises|Attributes):$", re.MULTILINE)
    assert not [path for path, said in documented() if section.search(said)]


def test_what_is_listed_exists_once() -> None:
    assert len(LISTED) == len(set(LISTED))
    for path in LISTED:
        assert pydoc.locate(path) is not None, path


def test_hooks_specs_and_the_data_of_a_round_are_listed() -> None:
    assert hookspecs.__name__ in LISTED
    assert {f"{spec.__module__}.{spec.__name__}" for spec in SPECS} <= set(LISTED)
    assert {f"mmspec.core.types.{name}" for name in ("Draft", "TargetOutput", "Scores", "Verdict", "Step")} <= set(
        LISTED
    )


def test_there_are_seven_hooks_each_with_a_line_of_documentation() -> None:
    assert [hook.name for hook in HOOKS] == [
        "mmspec_components",
        "mmspec_target_for",
        "mmspec_commands",
        "mmspec_parity_runners",
        "mmspec_layouts",
        "mmspec_advice",
        "mmspec_pipelines",
    ]
    assert all((ast.get_docstring(hook) or "").count("\n") == 0 for hook in HOOKS)
