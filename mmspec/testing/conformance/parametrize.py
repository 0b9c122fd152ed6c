"""Checks as tests of pytest: one test a check, expected failures strict."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mmspec.registry import Registry, Spec


def parametrize_checks(
    components: str | Spec | Iterable[str | Spec],
    *,
    registry: Registry | None = None,
    expected_failures: Mapping[str, str] | None = None,
    thorough: bool = False,
) -> Callable[[Any], Any]:
    """One test for every check.

    Args:
        components: A plugin's name (all that it offers), a component's, components, or several of these.
        registry: Where to look names up; default: what is installed.
        expected_failures: By check, or by `component/check`, why it fails; one that passes fails the test.
        thorough: Statistics on 400,000 rows or more, which takes minutes, not seconds.

    Raises:
        ValueError: A name is unknown (component, or check); says which is nearest.

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
    for check in checks_for(wanted, registry, expected_failures, thorough):
        marks = [pytest.mark.xfail(reason=check.expected, strict=True)] if check.expected is not None else []
        name = f"{check.component.kind}-{check.component.name}-{check.name}"
        params.append(pytest.param(replace(check, expected=None), id=name, marks=marks))
    return pytest.mark.parametrize("check", params)
