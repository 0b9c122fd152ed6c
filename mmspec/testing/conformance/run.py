"""Running checks: of a component, of a plugin, of everything that is installed; as data, and as pytest tests."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from mmspec.registry import Registry, Spec, installed
from mmspec.registry.specs import KINDS
from mmspec.registry.suggest import unknown
from mmspec.testing.conformance.example import Maker

if TYPE_CHECKING:
    from mmspec.testing.conformance.check import Check, Outcome

Wanted = str | Spec | Iterable[str | Spec]
"""A component, its name, `plugin:name`, the name of a plugin (all that it offers), or several of these."""


class Settings(TypedDict, total=False):
    """The settings of a run of checks; everything may be left out."""

    registry: Registry  # where names are looked up; default: what is installed
    # Why checks fail, by check or by `component/check`: they are shown as `xfail`, and must not pass
    expected_failures: Mapping[str, str]
    thorough: bool  # whether statistics take 400,000 rows or more, and minutes instead of seconds
    # What makes the examples of components, by `plugin:name`, where their factories do not say it (`Example`)
    examples: Mapping[str, Maker]


def checks_of(components: Wanted, **settings: Unpack[Settings]) -> "list[Check]":
    """The checks of components, in order, not run yet.

    Raises:
        ValueError: scipy is not installed, or a component or check is unknown (names the nearest).
    """
    refuse_without_scipy()
    from mmspec.testing.conformance.check import Check, claimed, known
    from mmspec.testing.conformance.subject import Subject

    registry = settings["registry"] if "registry" in settings else installed()
    reasons = {}
    for place, reason in settings.get("expected_failures", {}).items():
        name, _, check = place.rpartition("/")
        reasons[name, known(check)] = reason
    wanted, checks = [components] if isinstance(components, str | Spec) else components, []
    for component in (found for name in wanted for found in select(name, registry)):
        subject = Subject(component, registry, settings.get("thorough", False), settings.get("examples"))
        for promise in claimed(component):
            why = reasons.get((component.name, promise.name), reasons.get(("", promise.name)))
            checks.append(Check(promise, subject, why))
    return checks


def check_component(component: Wanted, **settings: Unpack[Settings]) -> "list[Outcome]":
    """Run every check of a component, or of all components of a name. Arguments and errors: see `checks_of`."""
    return [check.outcome() for check in checks_of(component, **settings)]


def parametrize_checks(components: Wanted, **settings: Unpack[Settings]) -> Callable[[Any], Any]:
    """One pytest test for every check; expected failures are strict. Arguments and errors: see `checks_of`.

    Example:
        ```python
        @parametrize_checks("acme")
        def test_conformance(check):
            check()
        ```
    """
    import pytest

    params = []
    for check in checks_of(components, **settings):
        marks = [pytest.mark.xfail(reason=check.expected, strict=True)] if check.expected is not None else []
        name = f"{check.component.kind}-{check.component.name}-{check.name}"
        params.append(pytest.param(replace(check, expected=None), id=name, marks=marks))
    return pytest.mark.parametrize("check", params)


def refuse_without_scipy() -> None:
    """Check for scipy before anything runs."""
    if find_spec("scipy") is None:
        raise ValueError('the conformance kit needs scipy for its statistics: pip install "mmspec[check]"')


def select(name: str | Spec, registry: Registry) -> list[Spec]:
    """The components that a name means: a plugin's, those of every kind that share the name, or the component."""
    if isinstance(name, Spec):
        return [name]
    records = {plugin.name: plugin for plugin in registry.plugins()}
    if name in records:
        if records[name].error:
            raise ValueError(f"plugin {name!r} could not be loaded: {records[name].error}")
        return list(records[name].components)
    everything = registry.components()
    if not any(name in (c.name, c.qualified) for c in everything):
        names = [*records, *(c.qualified if ":" in name else c.name for c in everything)]
        raise ValueError(unknown("plugin or component", name, names))
    return [
        registry.get(kind, name)
        for kind in KINDS
        if any(name in (c.name, c.qualified) for c in registry.components(kind))
    ]


def broken_plugins(registry: Registry) -> "Iterator[Outcome]":
    """A failed check for every plugin that could not be loaded."""
    from mmspec.testing.conformance.check import Outcome
    from mmspec.testing.conformance.promise import NOTHING

    for plugin in registry.plugins():
        if plugin.error:
            yield Outcome("plugin-loads", plugin.name, "fail", NOTHING, plugin.error, "plugin")
