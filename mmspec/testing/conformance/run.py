"""Running checks: of a component, of a plugin, of everything that is installed."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mmspec.registry import Registry, Spec, installed
from mmspec.registry.specs import KINDS
from mmspec.registry.suggest import unknown

if TYPE_CHECKING:
    from mmspec.testing.conformance.check import Check, Outcome
    from mmspec.testing.conformance.example import Maker


def check_component(
    component: str | Spec,
    *,
    registry: Registry | None = None,
    expected_failures: Mapping[str, str] | None = None,
    thorough: bool = False,
    examples: "Mapping[str, Maker] | None" = None,
) -> "list[Outcome]":
    """Run every check of a component, or of all components of a name.

    Args:
        component: A component, its name, `plugin:name`, or the name of a plugin (all that it offers).
        registry: The registry in which names are looked up; default: what is installed.
        expected_failures: Why a check fails, by check or by `component/check`. Such a check is shown as `xfail`; if it
            passes, that is a failure.
        thorough: Statistics on 400,000 rows or more, which takes minutes instead of seconds.
        examples: What makes the examples of components, by `plugin:name`, where their factories do not say it
            (`mmspec.testing.Example`).

    Raises:
        ValueError: scipy is not installed, or a component or check is unknown (names the nearest).
    """
    return [check.outcome() for check in checks_for([component], registry, expected_failures, thorough, examples)]


def checks_of(
    component: str | Spec,
    *,
    registry: Registry | None = None,
    expected_failures: Mapping[str, str] | None = None,
    thorough: bool = False,
    examples: "Mapping[str, Maker] | None" = None,
) -> "list[Check]":
    """The checks that `check_component` would run, not run yet. Arguments and errors are the same."""
    return checks_for([component], registry, expected_failures, thorough, examples)


def checks_for(
    wanted: Iterable[str | Spec],
    registry: Registry | None = None,
    expected: Mapping[str, str] | None = None,
    thorough: bool = False,
    examples: "Mapping[str, Maker] | None" = None,
) -> "list[Check]":
    """The checks of several components or names, in order. Arguments and errors as in `check_component`."""
    refuse_without_scipy()
    from mmspec.testing.conformance.check import Check, claimed, known
    from mmspec.testing.conformance.subject import Subject

    registry = registry if registry is not None else installed()
    reasons = {}
    for place, reason in (expected or {}).items():
        name, _, check = place.rpartition("/")
        reasons[name, known(check)] = reason
    checks = []
    for component in (found for name in wanted for found in select(name, registry)):
        subject = Subject(component, registry, thorough, examples)
        for promise in claimed(component):
            why = reasons.get((component.name, promise.name), reasons.get(("", promise.name)))
            checks.append(Check(promise, subject, why))
    return checks


def refuse_without_scipy() -> None:
    """Check for scipy before anything runs.

    Raises:
        ValueError: scipy is not installed.
    """
    if find_spec("scipy") is None:
        raise ValueError('the conformance kit needs scipy for its statistics: pip install "mmspec[check]"')


def select(name: str | Spec, registry: Registry) -> list[Spec]:
    """The components that a name means: those of a plugin, those of every kind that share the name, or the component.

    Raises:
        ValueError: There is none; names the nearest.
    """
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
