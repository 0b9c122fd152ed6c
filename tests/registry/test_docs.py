"""CONTRIBUTING states hooks, protocols and checks as they are."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mmspec
from mmspec.registry import hookspecs
from mmspec.testing.conformance.check import promises

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
HOOKS = [n for n in ast.parse(inspect.getsource(hookspecs)).body if isinstance(n, ast.FunctionDef)]
#: Not protocols, but an author calls these.
CALLED = {"Draft": ("chain", "tree", "empty"), "Round": ("by_position", "fresh"), "DraftNoise": ("chain", "level")}
#: transformers' own, which nobody writes for us.
THEIRS = {"Processor"}


def shown(function: ast.FunctionDef, owner: str = "") -> str:
    """A signature as a reader wants it: no `self`, no quotes around names, spaces around defaults."""
    arguments = function.args
    named = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(named) - len(arguments.defaults)) + list(arguments.defaults)
    words = [
        f"{a.arg}{f': {ast.unparse(a.annotation)}' if a.annotation else ''}{f' = {ast.unparse(d)}' if d else ''}"
        for a, d in zip(named, defaults, strict=True)
        if a.arg != "self"
    ]
    if arguments.vararg and arguments.vararg.annotation:
        words.append(f"*{arguments.vararg.arg}: {ast.unparse(arguments.vararg.annotation)}")
    assert not arguments.kwonlyargs and not arguments.kwarg, f"{owner}.{function.name}: teach this test its arguments"
    text = f"{function.name}({', '.join(words)}) -> {ast.unparse(function.returns)}".replace("'", "")
    return f"{owner}.{text}" if owner else text


def methods() -> Iterator[str]:
    """Every method of every protocol of the core, and those that authors call."""
    for file in sorted((Path(mmspec.__file__).parent / "core").rglob("*.py")):
        for found in ast.parse(file.read_text()).body:
            if not isinstance(found, ast.ClassDef) or found.name in THEIRS:
                continue
            protocol = any(ast.unparse(base) == "Protocol" for base in found.bases)
            for method in found.body:
                if isinstance(method, ast.FunctionDef) and (protocol or method.name in CALLED.get(found.name, ())):
                    yield shown(method, found.name)


METHODS = list(methods())
STATED = re.findall(r"^`([A-Za-z_.]+\(.*\) -> .*)`\n: (\S.*)", TEXT, re.MULTILINE)


@pytest.mark.parametrize("signature", [*map(shown, HOOKS), *METHODS])
def test_signature_stands_in_contributing_with_a_line_on_what_it_does(signature: str) -> None:
    assert signature in dict(STATED), f"CONTRIBUTING lacks `{signature}` and a line ': what it does'"


def test_contributing_states_nothing_that_is_not_there() -> None:
    assert {signature for signature, _ in STATED} == {*map(shown, HOOKS), *METHODS}
    owners = {signature.split(".")[0] for signature in METHODS}
    assert owners >= {"Target", "Drafter", "HostDrafter", "Rule", "Distribution", "Policy", "Noise", *CALLED}


def test_there_are_five_hooks_each_with_a_line_of_documentation() -> None:
    assert [h.name for h in HOOKS] == [
        "mmspec_components",
        "mmspec_target_for",
        "mmspec_commands",
        "mmspec_shipped_models",
        "mmspec_parity_runners",
    ]
    assert all(ast.get_docstring(h).count("\n") == 0 for h in HOOKS)


def test_every_check_of_the_kit_stands_in_contributing() -> None:
    wanted = [f"| `{p.name}` | {', '.join(p.kinds)} | {p.text} |" for p in promises()]
    section = TEXT.split("## The conformance kit\n")[1].split("\n## ")[0]
    stated = [line for line in section.splitlines() if line.startswith("| `")]
    assert stated == wanted, "the table should be:\n" + "\n".join(wanted)


def test_readme_opens_with_what_this_is_and_is_not() -> None:
    first, second, *_ = (ROOT / "README.md").read_text().splitlines()
    assert "speculative decoding" in first
    assert "not the benchmark" in second and "2603.14989" in second


def test_the_first_example_gains_and_says_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """In float32, where equality is promised; its passes are counted, so no machine's speed decides."""
    code = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert "float32" in code
    made: dict[str, Any] = {}
    exec(code, made)
    stated = re.search(r"print\(spec.report\)  # (\d+ units in \d+ passes)", code)
    assert stated is not None and stated[1] in capsys.readouterr().out
    report = made["spec"].report
    assert report.acceptance_length > 2
    plain = made["model"].generate(**made["inputs"], max_new_tokens=60, do_sample=False)
    assert made["out"][0, : plain.shape[1]].tolist() == plain[0].tolist()
