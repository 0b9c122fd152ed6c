"""Running checks: of a component, of a plugin, of everything that is installed."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec

from mmspec.registry import Registry, Spec, installed
from mmspec.registry.specs import KINDS
from mmspec.registry.suggest import unknown
from mmspec.testing.conformance.check import NOTHING, Check, claimed, known
from mmspec.testing.conformance.outcome import Outcome


def check_component(
    component: str | Spec,
    *,
    registry: Registry | None = None,
    expected_failures: Mapping[str, str] | None = None,
    thorough: bool = False,
) -> list[Outcome]:
    """Run every check of a component, or of all components of a name.

    Args:
        component: A component, its name, `plugin:name`, or the name of a plugin, which is all that it offers.
        registry: Where to look names up; default: what is installed.
        expected_failures: By check, or by `component/check`, why it fails. Shown as `xfail`; one that passes is a
            failure.
        thorough: Statistics on 400,000 rows or more, which takes minutes, not seconds.

    Raises:
        ValueError: A name is unknown (component, or check); says which is nearest.
    """
    return [check.outcome() for check in checks_for([component], registry, expected_failures, thorough)]


def checks_of(
    component: str | Spec,
    *,
    registry: Registry | None = None,
    expected_failures: Mapping[str, str] | None = None,
    thorough: bool = False,
) -> list[Check]:
    """The checks that `check_component` would run, not run yet. Arguments and errors are the same."""
    return checks_for([component], registry, expected_failures, thorough)


def checks_for(
    wanted: Iterable[str | Spec],
    registry: Registry | None = None,
    expected: Mapping[str, str] | None = None,
    thorough: bool = False,
) -> list[Check]:
    """The checks of several, in order.

    Raises:
        ValueError: scipy is not installed, or a name is unknown.
    """
    refuse_without_scipy()
    from mmspec.testing.conformance.subject import Subject

    registry = registry if registry is not None else installed()
    reasons = {_named(name): reason for name, reason in (expected or {}).items()}
    checks = []
    for component in (found for name in wanted for found in select(name, registry)):
        subject = Subject(component, registry, thorough)
        for promise in claimed(component):
            why = reasons.get((component.name, promise.name), reasons.get(("", promise.name)))
            checks.append(Check(promise, subject, why))
    return checks


def refuse_without_scipy() -> None:
    """Refuse to begin what cannot be finished.

    Raises:
        ValueError: scipy is not installed.
    """
    if find_spec("scipy") is None:
        raise ValueError('the conformance kit needs scipy for its statistics: pip install "mmspec[check]"')


def select(name: str | Spec, registry: Registry) -> list[Spec]:
    """The components that a name means: a plugin's, all kinds of a name, or the one that it is.

    Raises:
        ValueError: There is none; says which is nearest.
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


def broken_plugins(registry: Registry) -> Iterator[Outcome]:
    """A failure for every plugin that could not be loaded."""
    for plugin in registry.plugins():
        if plugin.error:
            yield Outcome("plugin-loads", plugin.name, "fail", NOTHING, plugin.error, "plugin")


def _named(expected: str) -> tuple[str, str]:
    """`component/check` or `check`, taken apart."""
    component, _, check = expected.rpartition("/")
    return component, known(check)
