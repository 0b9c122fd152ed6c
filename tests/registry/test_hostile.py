"""Plugins that lie, raise, never end, change what they gave, speak to the terminal: listed, and harmless to others."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mmspec.cli.app import build
from mmspec.registry import DrafterSpec, MethodSpec, PluginError, Registry, TargetSpec, hookimpl, installed, load
from mmspec.registry.printable import LONGEST, one_line, printable, refuse_control

ESC, BIDI, NOTHING = "\x1b", "\u202e", "\u200b"
HEAD = """
from mmspec.registry import DrafterSpec, hookimpl

def drafter(name):
    return DrafterSpec(name=name, factory="fractions:Fraction", summary="A drafter.")

@hookimpl
def mmspec_components():
"""
GREETING = HEAD + "    return [drafter('greeting')]\n"


def drafter(name: str = "thing", **facts: Any) -> DrafterSpec:
    return DrafterSpec(**{"name": name, "factory": "fractions:Fraction", "summary": "A drafter."} | facts)


class Hooks:
    """A plugin made of functions."""

    def __init__(self, components: Callable[[], Any] = list, target: Callable[[Any], Any] = lambda model: None) -> None:
        self._components, self._target = components, target

    @hookimpl
    def mmspec_components(self) -> Any:
        return self._components()

    @hookimpl
    def mmspec_target_for(self, model: Any) -> Any:
        return self._target(model)


def find(registry: Registry, name: str) -> Any:
    return next(plugin for plugin in registry.plugins() if plugin.name == name)


def test_printable_text_has_no_control_characters() -> None:
    assert printable(f"a{ESC}[2J\nb\tc\x85{BIDI}d{NOTHING}\udc80") == "a\\x1b[2J b c \\u202ed\\u200b\\udc80"
    assert printable("× [/x] 猫 é") == "× [/x] 猫 é"
    with pytest.raises(ValueError, match=re.escape("the name holds the control character U+202E")):
        refuse_control(f"a{BIDI}", "the name")
    refuse_control("× 猫", "the name")


def test_an_error_is_one_line_even_of_a_class_that_fails_again() -> None:
    class Twice(Exception):
        def __str__(self) -> str:
            raise RuntimeError("again")

    assert one_line(ValueError(f"a\n  b{ESC}")) == "a b\\x1b"
    assert one_line(Twice()) == "an error that cannot be shown"
    assert len(one_line(ValueError("x" * 10**6))) < LONGEST + 3


@pytest.mark.parametrize("bad", [ESC, "\n", "\r", "\x00", "\x9b", BIDI, "\u2066", NOTHING, "\u2028", "\ufeff"])
@pytest.mark.parametrize("attribute", ["name", "summary", "paper"])
def test_control_characters_are_refused(attribute: str, bad: str) -> None:
    with pytest.raises(ValueError, match=r"control character U\+|lower-case words"):
        drafter(**{attribute: f"a{bad}b"})


@pytest.mark.parametrize("attribute", ["summary", "paper"])
def test_texts_are_texts(attribute: str) -> None:
    with pytest.raises(ValueError, match=f"{attribute} is a text, not 5"):
        drafter(**{attribute: 5})


def test_help_of_options_is_refused_with_control_characters(install) -> None:
    source = """
import dataclasses

@dataclasses.dataclass(frozen=True)
class Options:
    size: int = dataclasses.field(default=1, metadata={"help": "of \\x1b[31m red"})
"""
    install("words", source)
    with pytest.raises(ValueError, match=r"the help of 'size' among the options of drafter 'thing' holds .* U\+001B"):
        drafter(options="mmspec_words_module:Options").load_options()
    with pytest.raises(ValueError, match="a dataclass, and fractions:Fraction is none"):
        drafter(options="fractions:Fraction").load_options()


def endless() -> Any:
    number = 0
    while True:
        yield drafter(f"d{number}")
        number += 1


class Changing(DrafterSpec):
    """Answers otherwise each time."""


@pytest.mark.parametrize(
    ("components", "says"),
    [
        (lambda: ["suffix"], "yields specs only"),
        (lambda: 5, "not iterable"),
        (lambda: [drafter(), None], "yields specs only"),
        (lambda: (drafter(f"d{i}") for i in range(10**5)), "more than 1000 components"),
        (endless, "more than 1000 components"),
        (lambda: [Changing(name="c", factory="a:B", summary="C.")], "yields specs only"),
        (lambda: sys.exit(3), "3"),
    ],
)
def test_a_manifest_that_is_none_leaves_nothing(components: Callable[[], Any], says: str) -> None:
    registry = Registry()
    with pytest.raises((TypeError, ValueError, SystemExit), match=says):
        registry.register(Hooks(components), "odd")
    assert registry.plugins() == () and registry.components() == ()
    registry.register(Hooks(lambda: [drafter()]), "odd")
    assert registry.get("drafter", "thing").owner == "odd"


def test_what_a_plugin_changes_later_is_not_what_was_registered() -> None:
    mine, values = drafter(), {"size": 1}
    method = MethodSpec(name="m", exactness="lossy", summary="A method.", defaults=values)
    registry = Registry()
    registry.register(Hooks(lambda: [mine, method]), "later")
    object.__setattr__(mine, "summary", f"{ESC}[2J")
    values["size"] = 2
    assert registry.get("drafter", "thing").summary == "A drafter."
    found = registry.get("method", "m")
    assert found.defaults == {"size": 1}
    with pytest.raises(TypeError):
        found.defaults["size"] = 3  # type: ignore[index]


def test_a_changed_component_is_checked_again() -> None:
    mine = drafter()
    object.__setattr__(mine, "summary", f"{ESC}[2J")
    with pytest.raises(ValueError, match="control character"):
        Registry().register(Hooks(lambda: [mine]), "later")


def test_hooks_of_a_plugin_that_was_refused_are_never_called(install) -> None:
    """Whose hook has a wrong argument is half registered when that is found."""
    asked = "\n@hookimpl\ndef mmspec_target_for(modle):\n    return 'x'\n"
    calls = "\n@hookimpl\ndef mmspec_commands(app):\n    raise RuntimeError('called after all')\n"
    install("half", GREETING + calls + asked)
    registry = load()
    assert "modle" in find(registry, "half").error
    assert registry.ask("half", "mmspec_commands", app=typer.Typer()) is None
    assert "called after all" not in find(registry, "half").error


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda model: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda model: 5, "TypeError: a target is looked up by its name"),
        (lambda model: "nte", "ValueError: no target is called 'nte'; did you mean 'net'"),
        (lambda model: "gone:net", "no plugin is called 'gone'"),
        (lambda model: f"{ESC}[2J", r"no target is called '\\x1b\[2J'"),
        (lambda model: sys.exit(0), "SystemExit: 0"),
    ],
)
def test_a_plugin_that_cannot_say_its_target_is_noted_and_the_next_is_asked(
    answer: Callable[[Any], Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    net = TargetSpec(name="net", factory="fractions:Fraction", summary="A target.")
    registry.register(Hooks(lambda: [net], lambda model: "net"), "good")
    registry.register(Hooks(list, answer), "odd")
    with pytest.warns(UserWarning, match="plugin 'odd' failed in mmspec_target_for"):
        assert registry.target_for(SimpleNamespace()).owner == "good"
    assert re.search(says, find(registry, "odd").error) and find(registry, "good").status == "ok"
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    with pytest.raises(PluginError, match="plugin 'odd'"):
        registry.target_for(SimpleNamespace())


def test_the_error_of_an_import_cannot_speak_to_the_terminal(install) -> None:
    install("loud", f"raise RuntimeError('a {ESC}[2J[/x] b\\n{BIDI}c')")
    listed = find(load(), "loud").error
    assert "RuntimeError: a \\x1b[2J[/x] b \\u202ec" in listed and ESC not in listed


def test_a_plugin_that_asks_for_what_is_installed_while_it_is_loaded_is_told(install) -> None:
    install("eager", "from mmspec.registry import installed\n" + HEAD + "    installed()\n    return []\n")
    script = "from mmspec.registry import installed\nprint([p.error for p in installed().plugins() if p.error])"
    site = install("other", GREETING)
    run = subprocess.run([sys.executable, "-c", script], env=env_of(site), capture_output=True, text=True, check=True)
    assert "cannot ask for what is installed while it is being loaded" in run.stdout and run.stdout.count("Error") == 1


def env_of(site: Any) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


def test_how_long_a_plugin_takes_is_kept_and_said(install, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.cli import plugins
    from mmspec.registry import manager

    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(manager.time, "perf_counter", lambda: float(next(clock)))
    registry = Registry()
    registry.register(Hooks(lambda: [drafter()]), "slow")
    assert find(registry, "slow").seconds == 3.0
    assert plugins._summary(find(registry, "slow")).endswith("it takes 3.0 s to load, whatever mmspec is asked")


COMMANDS = GREETING + "\nimport typer\nfrom mmspec.cli.groups import group\n\n@hookimpl\ndef mmspec_commands(app):\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    app.command('first')(lambda: None)\n    raise RuntimeError('half way')\n", "half way"),
        ("    app.command('methods')(lambda: print('mine'))\n", "there is a command `mmspec methods` already"),
        (
            "    group(app, 'methods', 'Mine.').command('x')(lambda: None)\n",
            "`mmspec methods` already, which is no group",
        ),
        ("    app.command('bench')(lambda: print('mine'))\n", "there is a command `mmspec bench` already"),
        ("    group(app, 'generate', 'x').command('text')(lambda: None)\n", "a command `mmspec generate text` already"),
        ("    app.callback()(lambda: print('mine'))\n", "the options of `mmspec` itself are not its own"),
        ("    app.command('first')(lambda x: None)\n    app.command('a b')(lambda: None)\n", "lower-case words"),
        ("    app.command('first', help='closes [/x]')(lambda: None)\n", "is no markup of rich"),
        ("    app.command('first', help='speaks \\x1b[2J')(lambda: None)\n", r"control character U\+001B"),
        ("    def odd(x: dict[int, 'Nothing'] = None): ...\n    app.command('first')(odd)\n", "."),
        ("    app.registered_commands.append(5)\n", "."),
        ("    import sys; sys.exit(0)\n", "SystemExit"),
    ],
)
def test_commands_that_cannot_be_are_left_out_and_no_other_is_harmed(install, reload, body: str, says: str) -> None:
    install("odd", COMMANDS + body)
    registry = reload()
    with pytest.warns(UserWarning, match="plugin 'odd' failed in mmspec_commands"):
        app = build()
    assert re.search(says, find(registry, "odd").error)
    helped = CliRunner().invoke(app, ["--help"])
    assert helped.exit_code == 0 and "first" not in helped.output and "generate" in helped.output
    ran = CliRunner().invoke(app, ["methods", "--json"])
    assert ran.exit_code == 0 and "mine" not in ran.output
    assert CliRunner().invoke(app, ["generate", "--help"]).exit_code == 0


def test_a_group_that_a_plugin_keeps_is_not_filled_by_others(install, reload) -> None:
    kept = "\nimport typer\nKEPT = typer.Typer()\nKEPT.command('one')(lambda: print('one'))\n@hookimpl\n"
    install("keeper", GREETING + kept + "def mmspec_commands(app):\n    app.add_typer(KEPT, name='kept')\n")
    more = GREETING.replace("greeting", "other") + "\nfrom mmspec.cli.groups import group\n@hookimpl\n"
    install(
        "more", more + "def mmspec_commands(app):\n    group(app, 'kept', '').command('two')(lambda: print('two'))\n"
    )
    reload()
    for _ in range(2):
        app = build()
        assert [CliRunner().invoke(app, ["kept", name]).output for name in ("one", "two")] == ["one\n", "two\n"]


@pytest.fixture
def reload(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Registry]:
    """Makes the command line see what the test installed; undone after it."""
    from mmspec.cli import app, methods

    def again() -> Registry:
        registry = load()
        for module in (app, methods):
            monkeypatch.setattr(module, "installed", lambda: registry)
        return registry

    return again


def test_markup_and_brackets_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary that closes a tag which nobody opened."""
    monkeypatch.delenv("COLUMNS", raising=False)
    odd = [
        MethodSpec(name="odd-bracket", exactness="lossy", summary="[/x] [red]none[/red] \\[", drafter="gone"),
        MethodSpec(name="odd-summary", exactness="lossy", rule="core:match", summary="[/x] [bold]as it is"),
    ]
    installed().register(Hooks(lambda: odd), "brackets")
    try:
        run = CliRunner().invoke(build(), ["methods"])
        assert run.exit_code == 0 and "[/x] [bold]as it is" in run.output
        assert CliRunner().invoke(build(), ["methods", "odd-summary"]).exit_code == 0
        run = CliRunner().invoke(build(), ["methods", "--for", "mmspec/text-1m", "--all"])
        assert run.exit_code == 0 and "odd-bracket" in run.output
        assert CliRunner().invoke(build(), ["plugins"]).exit_code == 0
    finally:
        installed().unregister("brackets")


def test_one_object_is_one_plugin() -> None:
    registry, mine = Registry(), Hooks(lambda: [drafter()])
    registry.register(mine, "first")
    with pytest.raises(ValueError, match="already registered"):
        registry.register(mine, "second")
    assert [plugin.name for plugin in registry.plugins()] == ["first"]
