"""`mmspec --plugin FILE.py`: a module is a plugin, and what is wrong with it is said in a line."""

import subprocess
import sys
from pathlib import Path

import pytest

from mmspec.registry import Registry, installed, pair
from mmspec.registry.loading import add_file

PLUGIN = """
import mmspec

@mmspec.hookimpl
def mmspec_components():
    yield mmspec.DrafterSpec(name="{name}", factory="{module}:Thing", summary="A thing.")
    yield mmspec.MethodSpec(name="{name}", drafter="{name}", exactness="invariant", summary="It.")

@mmspec.hookimpl
def mmspec_commands(app):
    from mmspec.cli.groups import group

    app.command("{name}-hello")(lambda: print("hello from {name}"))
    group(app, "train", "Another help.").command("{name}")(lambda: print("trained {name}"))

class Thing:
    pass
"""


def write(folder: Path, module: str, source: str = PLUGIN) -> Path:
    file = folder / f"{module}.py"
    file.write_text(source.format(name=module.removeprefix("mmspec_").replace("_", "-"), module=module))
    return file


@pytest.fixture(autouse=True)
def forget(mmspec) -> None:
    """Also where a test does not ask for it: modules that were imported are forgotten."""


def test_the_plugin_is_called_after_the_file_and_its_factory_is_found(tmp_path: Path) -> None:
    registry = Registry()
    assert add_file(registry, write(tmp_path, "my_thing")).name == "my_thing"
    record = add_file(registry, write(tmp_path, "mmspec_sprout"))
    assert (record.name, record.status, record.location) == ("sprout", "ok", str(tmp_path / "mmspec_sprout.py"))
    assert registry.get("drafter", "sprout").qualified == "sprout:sprout"
    assert registry.get("drafter", "my_thing:my-thing").load() is sys.modules["my_thing"].Thing


def test_every_command_sees_it_and_it_may_bring_its_own(tmp_path: Path, mmspec) -> None:
    files = [write(tmp_path, name) for name in ("mmspec_sprig", "mmspec_twig")]
    options = [word for file in files for word in ("--plugin", str(file))]
    listed = mmspec(*options, "methods").output
    assert "sprig" in listed.split() and "twig" in listed.split() and "prompt-lookup" in listed
    assert mmspec(*options, "twig-hello").output == "hello from twig\n"
    assert mmspec(*options, "train", "sprig").output == "trained sprig\n"
    assert "drafter" in mmspec(*options, "train", "--help").output, "a group that is there already stays"
    assert "twig-hello" in mmspec(*options, "--help").output
    assert mmspec("twig-hello").exit_code == 2 and "sprig" not in mmspec("methods").output.split()


def test_a_method_of_a_file_is_used_like_any_other(tmp_path: Path) -> None:
    registry = installed()
    add_file(registry, write(tmp_path, "mmspec_sprout"))
    assert pair(registry, "sprout").drafter.qualified == "sprout:sprout"


@pytest.mark.parametrize(
    ("module", "source", "says"),
    [
        ("bad_syntax", "def f(:\n", "SyntaxError: invalid syntax"),
        ("bad_import", "x = 1\nimport not_there_at_all\n", r"No module named 'not_there_at_all' \(bad_import.py:2\)"),
        ("bad_exit", "raise SystemExit(3)\n", "SystemExit: 3"),
        ("bad_hooks", "def mmspec_components(): ...\n", "none of its functions is marked @mmspec.hookimpl"),
        (
            "bad_kind",
            PLUGIN.replace("mmspec.DrafterSpec", "mmspec.DrafteSpec"),
            r"it has .*DrafterSpec.* \(bad_kind.py:6\)",
        ),
        ("bad_spelling", PLUGIN.replace("mmspec_commands", "mmspec_comands"), "did you mean 'mmspec_commands'"),
        ("bad-name", PLUGIN, "bad-name.py is no module's name"),
        ("mmspec_text", PLUGIN, "another module 'mmspec_text'"),
        ("core", PLUGIN, "a plugin called 'core' is already there"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(tmp_path: Path, module: str, source: str, says: str) -> None:
    registry = Registry()
    registry.register(__import__("mmspec.core.manifest").core.manifest, "core")
    file = tmp_path / f"{module}.py"
    file.write_text(source.replace("{name}", "thing").replace("{module}", module))
    with pytest.raises(ValueError, match=says) as raised:
        add_file(registry, file)
    assert "\n" not in str(raised.value) and str(file) in str(raised.value)
    assert [plugin.name for plugin in registry.plugins()] == ["core"]


def test_a_mistake_on_the_command_line_is_one_line_and_stays_light(tmp_path: Path) -> None:
    script = "import sys; from mmspec.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"

    def mmspec(file: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, "--plugin", str(file), "methods"]
        return subprocess.run(command, capture_output=True, text=True)

    run = mmspec(write(tmp_path, "mmspec_sprout"))
    assert run.returncode == 0 and "sprout" in run.stdout and run.stdout.endswith("False\n")
    run = mmspec(tmp_path / "none.py")
    assert run.returncode == 2 and run.stderr.startswith("mmspec: --plugin takes a Python file, and ")
    assert run.stderr.count("\n") == 1
