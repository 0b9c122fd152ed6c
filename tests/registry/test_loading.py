"""Installed plugins: isolation, the allow-list, strictness, names taken twice."""

import re

import pytest

from mmspec.registry import PluginError, load

GOOD = """
from mmspec.registry import DrafterSpec, hookimpl

@hookimpl
def mmspec_components():
    yield DrafterSpec(name="acme", factory="fractions:Fraction", summary="A drafter.")
"""
BROKEN_IMPORT = "import a_module_that_is_not_there\n"
BROKEN_EXIT = "import sys; sys.exit(3)\n"
BROKEN_MANIFEST = GOOD + "    raise RuntimeError('half way')\n"
BROKEN_YIELD = GOOD.replace("yield DrafterSpec(", "yield dict(")
TWICE = GOOD + GOOD.rsplit("\n", 2)[-2] + "\n"
MISSPELT = GOOD + "\n@hookimpl\ndef mmspec_comands(app):\n    pass\n"
FEWER_ARGUMENTS = GOOD + "\n@hookimpl\ndef mmspec_target_for(modle):\n    pass\n"


def plugin(registry, name):
    return next(p for p in registry.plugins() if p.name == name)


def test_first_party_plugins_come_through_entry_points() -> None:
    registry = load()
    assert [p.name for p in registry.plugins()] == ["core", "continuous", "image", "ssm", "text", "video", "zoo"]
    assert {p.status for p in registry.plugins()} == {"ok"}
    assert plugin(registry, "text").distribution == "mmspec" and plugin(registry, "text").version == "0.1.0"
    assert registry.get("rule", "match").owner == "core"


def test_a_good_plugin_is_found(install) -> None:
    install("acme", GOOD)
    found = plugin(load(), "acme")
    assert (found.status, found.distribution, found.version) == ("ok", "mmspec-acme", "1.2")
    assert load().get("drafter", "acme").qualified == "acme:acme"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (BROKEN_IMPORT, "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        (BROKEN_EXIT, "SystemExit: 3"),
        ("def f(:\n", "SyntaxError"),
        (BROKEN_MANIFEST, "RuntimeError: half way"),
        (BROKEN_YIELD, r"TypeError: mmspec_components\(\) yields specs only"),
        (TWICE, "drafter 'acme' is given twice"),
        (MISSPELT, "no hook is called 'mmspec_comands'; did you mean 'mmspec_commands'"),
        (FEWER_ARGUMENTS, "modle"),
    ],
)
def test_a_broken_plugin_is_listed_and_harms_no_one(install, monkeypatch, source: str, error: str) -> None:
    install("broken", source)
    registry = load()
    listed = plugin(registry, "broken")
    assert listed.status == "error" and listed.distribution == "mmspec-broken" and listed.components == ()
    assert re.search(error, listed.error)
    assert registry.get("method", "plain").owner == "text"
    assert "acme" not in [c.name for c in registry.components()]
    with pytest.raises(ValueError, match="Not loaded: broken"):
        registry.get("drafter", "acme")

    monkeypatch.setenv("MMSPEC_STRICT", "1")
    with pytest.raises(PluginError, match="plugin 'broken'"):
        load()


def test_allow_list_keeps_the_core(install, monkeypatch) -> None:
    install("broken", BROKEN_IMPORT)
    monkeypatch.setenv("MMSPEC_PLUGINS", "text, absent")
    registry = load()
    status = {p.name: p.status for p in registry.plugins()}
    assert status["core"] == status["text"] == "ok"
    assert status["image"] == status["broken"] == "blocked"
    assert "not installed" in plugin(registry, "absent").error
    monkeypatch.setenv("MMSPEC_PLUGINS", "")
    assert {c.owner for c in load().components()} == {"core"}


def test_a_plugin_cannot_take_a_first_party_name(install) -> None:
    install("text", GOOD, distribution="another-text")
    registry = load()
    assert plugin(registry, "text").distribution == "mmspec"
    refused = next(p for p in registry.plugins() if p.distribution == "another-text")
    assert "already there" in refused.error


def test_trace_prints_times(install, monkeypatch, capsys) -> None:
    load()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("MMSPEC_TRACE", "1")
    load()
    assert "plugin text: manifest" in capsys.readouterr().err
