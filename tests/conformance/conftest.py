"""A plugin made up of components, and what its checks came to."""

from collections.abc import Callable
from typing import Any

import pytest

from mmspec.registry import Registry, Spec, hookimpl
from mmspec.registry.specs import SPECS
from mmspec.testing import Outcome, check_component


class Acme:
    def __init__(self, components: tuple[Spec, ...]) -> None:
        self.components = components

    @hookimpl
    def mmspec_components(self) -> tuple[Spec, ...]:
        return self.components


@pytest.fixture(scope="session")
def acme() -> Callable[..., Registry]:
    """`acme(*components)`: a registry with a plugin of that name."""

    def make(*components: Spec) -> Registry:
        registry = Registry()
        registry.register(Acme(components), "acme")
        return registry

    return make


@pytest.fixture(scope="session")
def checked(acme: Callable[..., Registry]) -> Callable[..., dict[str, Outcome]]:
    """`checked(cls, kind, **manifest)`: outcomes by check, of a component that a class of the test's module is."""

    def run(made: Any, kind: str, **manifest: Any) -> dict[str, Outcome]:
        said = {name: getattr(made, name) for name in ("needs", "offers", "exactness") if hasattr(made, name)}
        component = {spec.kind: spec for spec in SPECS}[kind](
            name="mine",
            factory=f"{made.__module__}:{made.__name__}",
            summary="Mine.",
            **{**said, **manifest},
        )
        return {outcome.check: outcome for outcome in check_component("acme", registry=acme(component))}

    return run


@pytest.fixture(scope="session")
def failed() -> Callable[[dict[str, Outcome]], set[str]]:
    """Names of the checks that failed."""
    return lambda found: {name for name, outcome in found.items() if outcome.status == "fail"}
