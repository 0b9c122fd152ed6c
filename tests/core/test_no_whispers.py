"""Core and api ask for members of our own protocols by `isinstance` or by plain access, never by `getattr`, `hasattr`.

What is left are attributes of foreign objects, which are listed here: an unknown one has to be thought about.
"""

import ast
from pathlib import Path

import pytest

import mmspec

ROOT = Path(mmspec.__file__).parent
FOREIGN = {
    "__dict__", "__name__", "__self__",  # Python
    "_is_user_defined", "_name_or_path", "config", "eos_token_id", "generate", "model_type",  # transformers
}  # fmt: skip
NAMED_AT_RUNTIME = {
    "api/pipeline.py": 2,  # the class among diffusers' own; the module that a subclass names
    "api/refusals.py": 1,  # any setting of a generation config
    "api/row_values.py": 1,  # the counters of a report
    "api/stored.py": 1,  # a class of a library, by the name in a file
}


def asked(file: Path) -> list[ast.expr]:
    """The names that a file hands to `getattr` or `hasattr`."""
    calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return [c.args[1] for c in calls if isinstance(c.func, ast.Name) and c.func.id in ("getattr", "hasattr")]


@pytest.mark.parametrize(
    "file",
    sorted(p for room in ("core", "api") for p in (ROOT / room).rglob("*.py")),
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_only_foreign_attributes_are_asked_for_by_name(file: Path) -> None:
    names = asked(file)
    constant = {name.value for name in names if isinstance(name, ast.Constant)}
    assert constant <= FOREIGN
    dynamic = sum(not isinstance(name, ast.Constant) for name in names)
    assert dynamic == NAMED_AT_RUNTIME.get(file.relative_to(ROOT).as_posix(), 0)
