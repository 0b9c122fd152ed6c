"""Checks as pytest tests: one test per check; expected failures are strict."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mmspec.registry import Registry, Spec
from mmspec.testing.conformance.example import Maker


def parametrize_checks(
    components: str | Spec | Iterable[str | Spec],
    *,
    registry: Registry | None = None,
    expected_failures: Mapping[str, str] | None = None,
    thorough: bool = False,
    examples: Mapping[str, Maker] | None = None,
) -> Callable[[Any], Any]:
    """One test for every check.

    Args:
        components: A component, its name, the name of a plugin (all that it offers), or several of these.
        registry: The registry in which names are looked up; default: what is installed.
        expected_failures: Why a check fails, by check or by `component/check`; such a check fails its test if it
            passes.
        thorough: Statistics on 400,000 rows or more, which takes minutes instead of seconds.
        examples: What makes the examples of components, by `plugin:name`, where their factories do not say it.

    Raises:
        ValueError: scipy is not installed, or a component or check is unknown (names the nearest).

    Example:
        ```python
        @parametrize_checks("acme")
        def test_conformance(check):
            check()
        ```
    """
    import pytest

    from mmspec.testing.conformance.run import checks_for

    wanted = [components] if isinstance(components, str | Spec) else list(components)
    params = []
    for check in checks_for(wanted, registry, expected_failures, thorough, examples):
        marks = [pytest.mark.xfail(reason=check.expected, strict=True)] if check.expected is not None else []
        name = f"{check.component.kind}-{check.component.name}-{check.name}"
        params.append(pytest.param(replace(check, expected=None), id=name, marks=marks))
    return pytest.mark.parametrize("check", params)
