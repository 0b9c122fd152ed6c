"""CONTRIBUTING states the hooks as they are."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from mmspec.registry import Registry, hookspecs, pair

ROOT = Path(__file__).parents[2]
HOOKS = [n for n in ast.parse(inspect.getsource(hookspecs)).body if isinstance(n, ast.FunctionDef)]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_signature_stands_in_contributing(hook: ast.FunctionDef) -> None:
    signature = f"{hook.name}({ast.unparse(hook.args)}) -> {ast.unparse(hook.returns)}"
    assert signature in (ROOT / "CONTRIBUTING.md").read_text()


def test_there_are_three_hooks_each_with_a_line_of_documentation() -> None:
    assert [h.name for h in HOOKS] == ["mmspec_components", "mmspec_target_for", "mmspec_commands"]
    assert all(ast.get_docstring(h).count("\n") == 0 for h in HOOKS)


def test_readme_opens_with_what_this_is_and_is_not() -> None:
    first, second, *_ = (ROOT / "README.md").read_text().splitlines()
    assert "speculative decoding" in first
    assert "not the benchmark" in second and "2603.14989" in second


def test_the_plugin_in_contributing_works(tmp_path, monkeypatch) -> None:
    source = re.search(r"```python\n(# mmspec_echo\.py.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    (tmp_path / "mmspec_echo.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    registry.register(importlib.import_module("mmspec.core.manifest"), "core")
    registry.register(importlib.import_module("mmspec_echo"), "echo")
    pairing = pair(registry, "repeat-last")
    assert pairing.needs == {"discrete"} and pairing.exactness == "invariant"
    assert pairing.drafter.load()().author.propose([[1, 2], [3]], 2) == [[2, 2], [3, 3]]
